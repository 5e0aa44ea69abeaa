from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from equipoise.measures.trajectories import (
    SIGNATURE,
    WINDOW,
    cluster_texts,
    count_clusters,
    sign_texts,
    similarity,
    vendi,
)


def words(rng, n):
    return " ".join("".join(rng.choice([*"abcdefghijklmnopqrstuvwxyz"], rng.integers(2, 9))) for _ in range(n))


def jaccard(a, b):
    one, two = ({text.encode()[i : i + 8] for i in range(len(text.encode()) - 7)} for text in (a, b))
    return len(one & two) / len(one | two)


def mixed_texts(seed, pieces=12):
    """Texts that share some of their parts, so that their similarities range from 0 to 1."""
    rng = np.random.default_rng(seed)
    parts = [words(rng, 25) for _ in range(pieces)]
    return [
        " ".join(parts[i] if i < shared else words(rng, 25) for i in range(pieces))
        for shared in range(0, pieces + 1, 2)
    ]


def test_similarity_estimates_the_jaccard_similarity_of_shingles():
    errors = []
    for seed in range(12):
        texts = mixed_texts(seed)
        found = similarity(sign_texts(texts))
        errors += [found[i, j] - jaccard(texts[i], texts[j]) for i, j in combinations(range(len(texts)), 2)]
    assert np.std(errors) < 0.09  # √(¼ / 32) at worst
    assert abs(np.mean(errors)) < 0.02


def test_equal_texts_agree_and_strangers_do_not():
    rng = np.random.default_rng(1)
    one, two = words(rng, 300), words(rng, 300)
    found = similarity(sign_texts([one, two, one]))
    assert found[0, 2] == 1.0
    assert found[0, 1] < 0.1
    np.testing.assert_array_equal(np.diag(found), 1.0)
    np.testing.assert_array_equal(found, found.T)


def test_repeating_a_part_changes_no_set_of_shingles():
    text = words(np.random.default_rng(2), 50) + " "
    assert similarity(sign_texts([text * 2, text * 5]))[0, 1] == 1.0


def test_a_signature_does_not_depend_on_the_texts_beside_it():
    rng = np.random.default_rng(3)
    texts = [words(rng, n) for n in (1, 3, 80, 5, 2000, 40)]
    together = sign_texts(texts)
    for text, signature in zip(texts, together, strict=True):
        np.testing.assert_array_equal(sign_texts([text])[0], signature)


def test_missing_empty_and_short_texts():
    signatures = sign_texts([None, "", "ab", "ab", "abc", ""])
    assert signatures.shape == (6, SIGNATURE)
    assert signatures.dtype == np.uint32
    assert not signatures[0].any()
    assert signatures[1:].any(axis=1).all()
    found = similarity(signatures)
    assert found[1, 5] == found[2, 3] == 1.0
    assert found[1, 2] == found[2, 4] == 0.0
    assert sign_texts([]).shape == (0, SIGNATURE)


def test_only_the_window_is_read():
    head = words(np.random.default_rng(4), 4000)[:WINDOW]
    assert len(head) == WINDOW
    assert similarity(sign_texts([head + "x" * 5000, head + "y" * 90_000]))[0, 1] == 1.0


def test_broken_unicode_is_signed():
    assert sign_texts(["\ud800 lone surrogate", "日本語のテキスト"]).any(axis=1).all()


def test_vendi_of_known_matrices():
    assert vendi(np.eye(5)) == pytest.approx(5)
    assert vendi(np.ones((5, 5))) == pytest.approx(1)
    # Two blocks of 3 and 1 equal texts: eigenvalues 3/4 and 1/4.
    blocks = np.kron(np.eye(2), np.ones((3, 3)))[:4, :4]
    assert vendi(blocks) == pytest.approx(np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25))))
    # Two texts of similarity s: eigenvalues (1 ± s) / 2.
    both = np.array([0.8, 0.2])
    assert vendi(np.array([[1, 0.6], [0.6, 1]])) == pytest.approx(np.exp(-(both * np.log(both)).sum()))
    np.testing.assert_allclose(vendi(np.stack([np.eye(3), np.ones((3, 3))])), [3, 1])


def test_clusters_by_average_linkage():
    # a–b 0.5; c is at 0.4 to a and 0.0 to b, on average 0.2: it joins only below that, where single linkage would chain.
    alike = np.array([[1, 0.5, 0.4], [0.5, 1, 0.0], [0.4, 0.0, 1]])
    assert [count_clusters(alike, cut) for cut in (0.6, 0.5, 0.25, 0.2, 0.1)] == [3, 2, 2, 1, 1]
    groups = cluster_texts(alike, 0.3)
    assert groups[0] == groups[1] != groups[2]
    assert count_clusters(np.ones((1, 1))) == 1
    assert count_clusters(np.ones((6, 6))) == 1


def test_clusters_do_not_depend_on_the_order_of_texts():
    texts = mixed_texts(7) + mixed_texts(8)
    order = np.random.default_rng(9).permutation(len(texts))
    assert count_clusters(similarity(sign_texts(texts))) == count_clusters(
        similarity(sign_texts([texts[i] for i in order]))
    )
