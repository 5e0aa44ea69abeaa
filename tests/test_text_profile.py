"""Breadth and depth of a search, on texts written for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.text.profile import profile_search

FILLER = "we carry the terms over and collect what is left on either side, then divide by the common factor of the row "

# Breadth first: four options named at once, then some of them looked into.
WIDE = (
    "Option A: factor it. Option B: complete the square. Option C: use the formula. Option D: guess a root. "
    f"Check option A. {FILLER} That fails. Check option C. {FILLER} {FILLER} So it is."
)
# Depth first: one attempt, followed for long, tested, given up; then the next. About as long as the other.
DEEP = (
    f"Let me try factoring. {FILLER} {FILLER} Let me verify. That doesn't work. "
    f"Alternatively complete the square. {FILLER} Let me verify. So it is right, and we are done here."
)


def test_wide_and_deep_separate_at_like_length():
    wide, deep = profile_search(WIDE), profile_search(DEEP)
    assert abs(len(WIDE.split()) - len(DEEP.split())) < 10
    assert (wide.opened, wide.opened_total, wide.verified, wide.abandoned) == (4, 4, 2, 1)
    assert (deep.opened, deep.opened_total, deep.verified, deep.abandoned) == (1, 2, 2, 1)
    assert (wide.breadth, deep.breadth) == (2.0, 1.0)
    # The options take 4, 5, 5 and 5 words, and the first check follows them.
    assert wide.mean_branch_depth == pytest.approx((19 + 15 + 10 + 5) / 4)
    # "try factoring … let me" and "alternatively complete the square … let me", with 22 words in each filler.
    assert len(FILLER.split()) == 22
    assert deep.mean_branch_depth == pytest.approx(((2 + 44 + 2) + (4 + 22 + 2)) / 2)


def test_depths_by_hand():
    #          try      -> 4 words begin before "doesn't": try, this, and, it
    #                                  alternatively -> 5: alternatively, use, the, rule, then
    profile = profile_search("Try this and it doesn't work. Alternatively use the rule, then check. Suppose more.")
    assert (profile.opened_total, profile.verified, profile.abandoned) == (3, 1, 1)
    assert profile.mean_branch_depth == pytest.approx((4 + 5) / 2)  # the last branch is never closed: no depth
    assert profile.breadth == 3.0
    assert profile.opened == 1  # the first one is given up before the second is opened


def test_two_branches_before_one_closing_both_run_up_to_it():
    # "Case 1 odd. Case 2 even. Verify": from the first 6 words (case 1 odd case 2 even), from the second 3.
    profile = profile_search("Case 1 odd. Case 2 even. Verify")
    assert profile.mean_branch_depth == pytest.approx((6 + 3) / 2)
    assert profile.opened == 2


def test_a_candidate_named_again_is_looked_into_not_opened():
    profile = profile_search("Option 1 is x. Option 2 is y. Now option 1: fine. Option 3 is z.")
    assert (profile.opened, profile.opened_total) == (2, 3)


def test_elaboration_ends_the_first_sweep():
    profile = profile_search("Approach 1: sum. " + "word " * 60 + "Approach 2: product.")
    assert (profile.opened, profile.opened_total) == (1, 2)


def test_nothing_to_see():
    profile = profile_search("The sum is 4.")
    assert (profile.opened, profile.opened_total, profile.verified, profile.abandoned) == (0, 0, 0, 0)
    assert profile.mean_branch_depth is None
    assert profile.breadth is None


@given(
    st.lists(st.sampled_from(["option 1", "option 2", "check", "doesn't work", "try", "x", "İ", "."]), max_size=30).map(
        " ".join
    )
)
def test_counts_hang_together(text):
    profile = profile_search(text)
    assert 0 <= profile.opened <= profile.opened_total
    assert (profile.opened > 0) == (profile.opened_total > 0)
    assert (profile.breadth is None) == (profile.verified == 0)
    if profile.mean_branch_depth is not None:
        assert 0 < profile.mean_branch_depth <= len(text.split())
