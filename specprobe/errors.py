"""The one exception a user ever sees: a line that says what is wrong, where, and what to do."""


class SpecprobeError(Exception):
    """A mistake that the user can mend. The command line prints it as one line and exits with status 2.

    Write it as `where: what; what to do`, for example
    `prompts.jsonl:17: not JSON (unexpected end of line); delete the line or fix the writer`.
    """


class UnreachableError(SpecprobeError):
    """A model or tokenizer that is neither a folder here nor given by the Hub."""


class StoppedError(SpecprobeError):
    """The user's Ctrl-C, where there is more to say of what is kept than usual."""
