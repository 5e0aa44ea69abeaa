"""The token table: what one pass keeps of every token. Mergeable; a few hundred bytes per rollout, however long it is.

Axes: R rollouts (the rows of the answer table, in its order), T tokens, D tenths of a completion, K edges.
Per rollout there are sums, so that any window, condition or cluster of rollouts can be formed afterwards. Per cell
(condition and range of steps, see `cells`) there are the exact histogram of entropies and the entropy by token id.

Only tokens that the loss sees count: those with loss_mask False, tool or environment text, never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from equipoise.measures.cells import Cells, Condition, cells_of
from equipoise.measures.frames import Frame
from equipoise.measures.logprobs import POLICIES, count_logprobs
from equipoise.measures.planning import (
    MAX_TOKEN_ID,
    in_sample,
    planning_tokens,
    sample_level,
    string_lengths,
    text_keys,
)
from equipoise.measures.prompts import CONDITIONS, NUMBERED_CONDITIONS
from equipoise.rollouts.batch import Rollouts

BLOCK = 1 << 18  # tokens worked on at a time: their arrays stay in the processor's cache
HISTOGRAM_CELLS = 128
TOKEN_CELLS = 8
NOISE = 1e-3  # an entropy this far below 0 is rounding
MAX_ENTROPY = 65_504.0  # the largest float16

# Finite float16 numbers from 0 up are ordered like their bit patterns, so the pattern is the bin: quantiles are exact for
# entropies stored as float16 and within one part in 2,000 for others.
ENTROPY_OF_CODE = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
# Edges of the excess curve: about two per octave, from a thousandth of a nat to 11; exact in float16.
EDGES = (2.0 ** np.linspace(-10, 3.5, 24)).astype(np.float16).astype(np.float64)
_BIN_OF_CODE = np.searchsorted(EDGES, ENTROPY_OF_CODE, side="right").astype(np.uint8)

_COLUMNS = ("token_ids", "entropies", "loss_mask", *POLICIES, "logprobs_ref")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Sums over each rollout's tokens in `rows` (a name that no rollout has is absent; 0 tokens: not measured there).

    tokens                              tokens that count
    entropy_tokens, entropy, entropy_square   tokens with an entropy, Σ H, Σ H²
    position_tokens, position_entropy   the same by tenth of the completion, (R, D)
    excess                              Σ max(H − edge, 0) for each of `EDGES`, (R, K)
    entropy_bins                        tokens with H below the first edge, between neighbours, from the last up, (R, K + 1)
    planning_known, planning_tokens, planning_entropy   tokens inside strategic grams, where the text was searched (see
                                        `planning`) and its tokens spell it; planning_key: the text's hash
    logp_tokens, logp, logp_from        Σ log π of the sampled tokens; `logprobs.SOURCES` says whose
    drift_tokens, kl_k1, kl_k3, drift_from    against the reference model
    gap_tokens, gap_abs, gap_max, gap_k1, gap_k3, weight, weight_square, weight_tail    trainer against sampler

    `histograms` hold (counts, Σ H) by float16 code, `token_types` (counts, Σ H) by token id. `skipped` counts tokens
    and lists that could not be used, by reason.
    """

    size: int
    rows: Mapping[str, np.ndarray]
    histograms: Cells
    token_types: Cells
    skipped: Mapping[str, int] = field(default_factory=dict)
    vocab: Mapping[int, str] | None = None
    planning_level: int = 0

    def __len__(self) -> int:
        return self.size

    def __add__(self, other: TokenTable) -> TokenTable:
        rows = _stack([(self.size, self.rows), (other.size, other.rows)])
        level = max(self.planning_level, other.planning_level)
        if "planning_key" in rows:
            level = sample_level(rows["planning_key"], level)
        return TokenTable(
            self.size + other.size,
            _searched(rows, level),
            self.histograms + other.histograms,
            self.token_types + other.token_types,
            {k: self.skipped.get(k, 0) + other.skipped.get(k, 0) for k in sorted({*self.skipped, *other.skipped})},
            self.vocab if other.vocab is None else {**(self.vocab or {}), **other.vocab},
            level,
        )

    def take(self, chosen: np.ndarray) -> TokenTable:
        """The table of some rollouts. The cells still hold all."""
        rows = {name: values[chosen] for name, values in self.rows.items()}
        return replace(self, size=len(rows["tokens"]), rows=rows)

    def notes(self) -> list[str]:
        """What could not be used, in words."""
        return [f"tokens: {count:,} {why} were left out" for why, count in self.skipped.items()]

    def has(self, name: str) -> bool:
        """Whether any rollout has tokens behind this count (`entropy_tokens`, `drift_tokens`, …)."""
        return name in self.rows and bool(self.rows[name].any())


def _stack(parts: Sequence[tuple[int, Mapping[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Rows of all parts, one after the other; 0 where a part lacks a name."""
    stacked: dict[str, np.ndarray] = {}
    size, kinds = sum(n for n, _ in parts), {name: values for _, rows in parts for name, values in rows.items()}
    for name, one in kinds.items():
        stacked[name] = np.zeros((size, *one.shape[1:]), one.dtype)
        first = 0
        for n, rows in parts:
            if name in rows:
                stacked[name][first : first + n] = rows[name]
            first += n
    return stacked


def _searched(rows: dict[str, np.ndarray], level: int) -> dict[str, np.ndarray]:
    """The rows with planning tokens only where the text is in the sample of this level."""
    if "planning_known" not in rows:
        return rows
    kept_R = in_sample(rows["planning_key"], level)
    return rows | {name: rows[name] * kept_R for name in ("planning_known", "planning_tokens", "planning_entropy")}


class TokenCounter:
    """Fills a `TokenTable` from batches. `vocab`: strings of token ids; with it, planning tokens can be told apart."""

    def __init__(self, vocab: Mapping[int, str] | None = None) -> None:
        self._vocab = vocab
        self._lengths_V = None if vocab is None else string_lengths(vocab)
        self.columns: tuple[str, ...] = (*_COLUMNS, "step", *CONDITIONS, *NUMBERED_CONDITIONS)
        if vocab is not None:
            self.columns = (*self.columns, "completion")
        self._parts: list[tuple[int, dict[str, np.ndarray]]] = []
        self._histograms = Cells(HISTOGRAM_CELLS)
        self._token_types = Cells(TOKEN_CELLS)
        self._skipped: dict[str, int] = {}
        self._planning_keys, self._planning_level = np.empty(0, np.uint32), 0

    def add(self, rollouts: Rollouts) -> None:
        frame, unequal = Frame.of(rollouts, _COLUMNS)
        self._skip("lists of unequal length", unequal)
        texts, key_R = self._sample_texts(rollouts)
        keys, cell_R = cells_of(rollouts)
        for rows, part in frame.blocks(BLOCK):
            sums: dict[str, np.ndarray] = {}
            if self._lengths_V is not None and "token_ids" in part.columns:
                sums["planning_key"] = key_R[rows]
                planning_T = planning_tokens(part, texts[rows], self._lengths_V)
                if planning_T is not None:
                    part = part.having(planning=planning_T)
            if "loss_mask" in part.columns:
                part = part.where(part.columns["loss_mask"])
            sums["tokens"] = part.lengths
            if "entropies" in part.columns:
                sums |= self._count_entropies(part, keys, cell_R[rows])
            sums |= count_logprobs(part, self._skip)
            self._parts.append((len(part), sums))

    def table(self) -> TokenTable:
        size = sum(n for n, _ in self._parts)
        rows = _stack(self._parts)
        self._parts = [(size, rows)]  # the pieces would double what is held
        level = self._planning_level
        rows = _searched(rows, level)
        return TokenTable(size, rows, self._histograms, self._token_types, dict(self._skipped), self._vocab, level)

    def _sample_texts(self, rollouts: Rollouts) -> tuple[list[str | None], np.ndarray]:
        """The texts that will be searched for strategic grams, None for the others, and the hash of all."""
        texts = None if self._vocab is None else rollouts.texts("completion")
        if texts is None:
            return [None] * len(rollouts), np.zeros(len(rollouts), np.uint32)
        key_R = text_keys(texts)
        held = np.concatenate([self._planning_keys, key_R])
        self._planning_level = sample_level(held, self._planning_level)
        self._planning_keys = held[in_sample(held, self._planning_level)]
        chosen_R = in_sample(key_R, self._planning_level)
        return [text if chosen else None for text, chosen in zip(texts, chosen_R, strict=True)], key_R

    def _skip(self, why: str, count: int) -> None:
        if count:
            self._skipped[why] = self._skipped.get(why, 0) + int(count)

    def _count_entropies(
        self, part: Frame, keys: list[tuple[Condition, int | None]], cell_R: np.ndarray
    ) -> dict[str, np.ndarray]:
        part, H_T, code_T = self._clean_entropies(part)
        rows = np.arange(len(part))
        bins = len(EDGES) + 1
        place_T = part.spread(rows * bins) + _BIN_OF_CODE[code_T]
        count_RB = np.bincount(place_T, minlength=len(part) * bins).reshape(-1, bins)
        sum_RB = np.bincount(place_T, weights=H_T, minlength=len(part) * bins).reshape(-1, bins)
        above_RK = count_RB[:, :0:-1].cumsum(axis=1)[:, ::-1]  # tokens from each edge up
        excess_RK = sum_RB[:, :0:-1].cumsum(axis=1)[:, ::-1] - EDGES * above_RK
        self._count_cells(part, H_T, code_T, keys, cell_R)
        position_RD = part.per_decile(H_T)
        sums = {
            "entropy_tokens": part.lengths,
            "entropy": position_RD.sum(axis=1),
            "entropy_square": part.per_rollout(H_T * H_T),
            "position_tokens": np.diff(part.bounds).reshape(position_RD.shape).astype(np.uint32),
            "position_entropy": position_RD,
            "excess": excess_RK.astype(np.float32),
            "entropy_bins": count_RB.astype(np.uint32),
        }
        if "planning" in part.columns:
            planning_T = part.columns["planning"]
            sums["planning_known"] = part.per_rollout(planning_T >= 0) > 0
            sums["planning_tokens"] = part.per_rollout(planning_T == 1).astype(np.int64)
            sums["planning_entropy"] = part.per_rollout(H_T * (planning_T == 1))
        return sums

    def _clean_entropies(self, part: Frame) -> tuple[Frame, np.ndarray, np.ndarray]:
        """The tokens with a usable entropy, that entropy and its float16 code."""
        raw_T = part.columns["entropies"]
        if raw_T.dtype == np.float16 and raw_T.view(np.uint16).max(initial=0) < len(ENTROPY_OF_CODE):
            return part, raw_T.astype(np.float64), raw_T.view(np.uint16)  # no sign bit, no nan, no inf
        H_T = raw_T.astype(np.float64)
        finite_T = H_T <= MAX_ENTROPY  # False for nan too
        negative_T = H_T <= -NOISE
        self._skip("entropies that are nan or infinite", int((~finite_T & part.spread(part.known["entropies"])).sum()))
        self._skip("entropies below 0", int(negative_T.sum()))
        usable_T = finite_T & ~negative_T
        H_T = H_T[usable_T]
        H_T[H_T <= 0] = 0.0  # also −0, whose code has the sign bit
        return part.where(usable_T), H_T, H_T.astype(np.float16).view(np.uint16)

    def _count_cells(
        self,
        part: Frame,
        H_T: np.ndarray,
        code_T: np.ndarray,
        keys: list[tuple[Condition, int | None]],
        cell_R: np.ndarray,
    ) -> None:
        id_T = part.columns.get("token_ids")
        stored = part.columns["entropies"].dtype == np.float16
        for number, tokens in part.by_cell(cell_R):
            condition, step = keys[number]
            code, H = code_T[tokens], H_T[tokens]
            if not len(code):
                continue
            count = np.bincount(code)
            # A float16 is its code, so its bin's sum needs no pass over the tokens.
            entropy = count * ENTROPY_OF_CODE[: len(count)] if stored else np.bincount(code, weights=H)
            self._histograms.add(condition, step, np.stack([count, entropy]))
            if id_T is None:
                continue
            ids = id_T[tokens].astype(np.intp)  # once: bincount would do it twice
            if ids.min() < 0 or ids.max() >= MAX_TOKEN_ID:
                usable = (ids >= 0) & (ids < MAX_TOKEN_ID)
                self._skip(f"token ids from {MAX_TOKEN_ID} up", int((ids >= MAX_TOKEN_ID).sum()))
                ids, H = ids[usable], H[usable]
            if len(ids):
                self._token_types.add(condition, step, np.stack([np.bincount(ids), np.bincount(ids, weights=H)]))
