"""Tells answers that a failing service wrote from answers that a model wrote."""

from __future__ import annotations

import re

from specprobe.formats.turns import parse_json

LONGEST_ERROR = 400
"""Characters; error texts are one or two sentences, and longer answers about errors are answers."""

_ERROR = re.compile(
    r"""\W*(
        too\ many\ requests\b.*
      | (http\s*)?(error:?\s*)?(code:?\s*)?[45]\d\d[\s:,-]+(\(?client|server)?\s*
        (bad\ request|unauthorized|forbidden|not\ found|request\ time-?out|too\ many\ requests
        |internal\ server\ error|bad\ gateway|service\ unavailable|gateway\ time-?out)\b.{0,80}
      | (internal\ server\ error|bad\ gateway|service\ (temporarily\ )?unavailable|gateway\ time-?out
        |network\ error|error\ in\ (input|body|message)\ stream|load\ failed)
      | (error:?\s*)?(you(r\ account)?\ (have|has)\ )?rate\ ?limit(ed)?\ (reached|exceeded).*
      | (an\ error\ occurred|something\ went\ wrong)\b.{0,40}
        \b(try\ again|contact\ us|engine\ you\ requested|help\.openai\.com).*
      | error\ code:\ [45]\d\d\b.*
    )\W*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def is_error_answer(text: str) -> bool:
    """Whether a logged answer is the text of a failed request (rate limit, HTTP error, API error body)."""
    if len(text) > LONGEST_ERROR or not text:
        return False
    if text.lstrip().startswith('{"error"'):
        return isinstance(parse_json(text), dict)
    return _ERROR.fullmatch(text) is not None
