"""Losses per token, (B, T) in and out, stateless: surrogates, weights, regularisers, reductions, and what joins them."""
