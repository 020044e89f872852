"""The words of a page, for readers who were sent one and know none of them."""

from __future__ import annotations

GLOSSARY: tuple[tuple[str, str], ...] = (
    (
        "target, drafter",
        "The model whose text is wanted; what guesses ahead of it. The target checks every guess, so the text "
        "stays what it would have been.",
    ),
    (
        "round",
        "One pass of the target: it verifies the draft and writes every accepted token and one of its own.",
    ),
    (
        "depth",
        "The most draft tokens of a round (vLLM: num_speculative_tokens).",
    ),
    (
        "tokens per round",
        "Tokens written per pass of the target, rounds without a draft included. 1.00 is no gain. What speed "
        "follows from.",
    ),
    (
        "acceptance rate",
        "Accepted / drafted tokens. It falls with depth even where nothing gets worse.",
    ),
    (
        "acceptance length",
        "1 + accepted tokens / rounds that had a draft, as vLLM counts it. For methods that often have no "
        "draft it looks better than tokens per round.",
    ),
    (
        "accepted up to here",
        "All drafts up to this position were accepted, of all rounds with a draft.",
    ),
    (
        "accepted, given the drafts before it",
        "Of rounds that accepted all positions before and drafted this one: those that accepted it too.",
    ),
    (
        "coverage",
        "The share of rounds that had a draft at all.",
    ),
    (
        "90 % interval",
        "Where the true figure lies for prompts like these, 9 times out of 10; of speed-ups it also holds "
        "what is not known of the cost. Below 16 prompts it is too narrow.",
    ),
    (
        "speed-up",
        "Output tokens per second with speculation / without; for requests that come by the clock, mean "
        "latency without / with.",
    ),
    (
        "break even",
        "The tokens per round at which a speculative round earns exactly what it costs more.",
    ),
    (
        "speculate, don't, too close to call",
        "A gain of at least 5 % with an interval above 1 and 16 prompts or more; an interval that ends below "
        "1.05; all else.",
    ),
    (
        "concurrency",
        "Requests in flight. What drafts save at 1 they may cost at 64, where a round is already dear.",
    ),
    (
        "gap between chunks (ITL)",
        "Time between two pieces of a stream. With speculation pieces hold several tokens, so gaps grow even "
        "where tokens come faster.",
    ),
    (
        "time per output token (TPOT)",
        "Time from the first to the last token of a request, by token.",
    ),
    (
        "time to first token (TTFT)",
        "The wait for a turn and the prefill. Speculation does not make a prefill faster.",
    ),
    (
        "greedy and sampled drafts",
        "The drafter's likeliest tokens, or tokens drawn from its distribution, which above temperature 0 are "
        "accepted more often.",
    ),
    (
        "entropy",
        "How open the target's next token is, in nats. Where it is high nothing drafts well.",
    ),
    (
        "engine rules",
        "Engines draft and accept by different rules, and so do versions of one engine: whose were replayed.",
    ),
    (
        "flag, second model, trained head",
        "What it takes to adopt a method: a setting; another model in memory; weights trained for this very target.",
    ),
)
