import subprocess
import sys
from types import MappingProxyType

import pytest
import toy_target as toy
from toy_target import byte_tokenizer, chat, raw

from specprobe.errors import SpecprobeError
from specprobe.prompt import Message, Prompt
from specprobe.tokens import Tokenizer, UnrenderableError, load_tokenizer

ARGUMENTS = MappingProxyType({"city": "Köln", "days": 3})


def call(arguments):
    return MappingProxyType({"type": "function", "function": MappingProxyType({"name": "f", "arguments": arguments})})


def answer_text(tokenizer: Tokenizer, prompt: Prompt) -> tuple[str, bool]:
    ids, exact = tokenizer.encode_answer(prompt)
    return tokenizer.decode(ids), exact


def test_prompt_is_rendered_with_the_generation_prompt():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode_prompt(chat("hi", "yes", "so"))
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nso<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.dtype == "int32"
    assert not ids.flags.writeable


def test_answer_ends_with_the_end_of_turn_token_and_not_with_what_follows_it():
    assert answer_text(byte_tokenizer(), chat("hi", answer="hello")) == ("hello<|im_end|>", True)


def test_end_of_turn_token_is_found_in_the_template():
    assert byte_tokenizer().eos_ids == (0, 2)
    assert byte_tokenizer(None).eos_ids == (0,)


def test_prompt_and_answer_make_up_the_rendered_conversation():
    tokenizer = byte_tokenizer(toy.THINKING)
    prompt = chat("hi", answer=Message("assistant", "hello", reasoning="hm"))
    whole = tokenizer.decode(tokenizer.encode_prompt(prompt)) + answer_text(tokenizer, prompt)[0]
    assert whole == ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nhello<|im_end|>")


def test_answer_whose_blanks_are_trimmed_is_inexact():
    assert answer_text(byte_tokenizer(toy.TRIMMING), chat("hi", answer="hello \n")) == ("hello<|im_end|>", False)


def test_dropped_reasoning_is_inexact():
    prompt = chat("hi", answer=Message("assistant", "hello", reasoning="hm"))
    assert answer_text(byte_tokenizer(), prompt) == ("hello<|im_end|>", False)


def test_empty_block_of_thinking_is_inexact_unless_it_belongs_to_the_prompt():
    prompt = chat("hi", answer="hello")
    assert not answer_text(byte_tokenizer(toy.THINKING), prompt)[1]
    off = byte_tokenizer(toy.THINKING, enable_thinking=False)
    assert answer_text(off, prompt) == ("hello<|im_end|>", True)


def test_answer_that_departs_from_the_generation_prompt_begins_after_the_shared_header():
    tokenizer = byte_tokenizer(toy.OPENING)
    assert answer_text(tokenizer, chat("hi", answer="hello")) == ("hello<|im_end|>", False)
    # "<t" is shared with the "<think>" of the generation prompt, and yet belongs to the answer.
    assert answer_text(tokenizer, chat("hi", answer="<tool>")) == ("<tool><|im_end|>", False)


def test_template_that_refuses_a_conversation_says_so():
    prompt = Prompt("a", "f", 1, "messages", messages=(Message("system", "s"), Message("user", "u")))
    with pytest.raises(UnrenderableError, match="no system role"):
        byte_tokenizer(toy.NO_SYSTEM).encode_prompt(prompt)


def test_answer_that_the_template_refuses_is_taken_as_text():
    refusing = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}" + toy.CHATML
    prompt = chat("hi", answer=Message("assistant", "hello", reasoning="hm"))
    assert answer_text(byte_tokenizer(refusing), prompt) == ("hm\nhello<|end|>", False)


@pytest.mark.parametrize("template", [toy.TOOLS, toy.TOOLS_AS_TEXT])
@pytest.mark.parametrize("arguments", [ARGUMENTS, '{"city": "Köln", "days": 3}'])
def test_tool_arguments_are_given_in_the_form_that_the_template_takes(template, arguments):
    prompt = chat("hi", answer=Message("assistant", "", tool_calls=(call(arguments),)))
    text, exact = answer_text(byte_tokenizer(template), prompt)
    assert exact
    assert "Köln" in text
    assert text.endswith("</call><|im_end|>")


def test_tool_arguments_that_are_no_json_do_not_crash():
    prompt = chat("hi", answer=Message("assistant", "x", tool_calls=(call("{broken"),)))
    text, exact = answer_text(byte_tokenizer(toy.TOOLS), prompt)
    assert not exact
    assert "{broken" in text


def test_dropped_tool_call_is_inexact():
    prompt = chat("hi", answer=Message("assistant", "x", tool_calls=(call(ARGUMENTS),)))
    assert answer_text(byte_tokenizer(), prompt) == ("x<|im_end|>", False)


def test_tools_reach_the_template():
    template = "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}" + toy.CHATML
    prompt = chat("hi", tools=(MappingProxyType({"name": "f", "parameters": MappingProxyType({"a": (1,)})}),))
    tokenizer = byte_tokenizer(template)
    assert tokenizer.decode(tokenizer.encode_prompt(prompt)).startswith('[{"name": "f", "parameters": {"a": [1]}}]<')


def test_raw_text_gets_the_beginning_token_once():
    tokenizer = byte_tokenizer(adds_bos=True)
    assert tokenizer.decode(tokenizer.encode_prompt(raw("ab"))) == "<s>ab"
    assert tokenizer.decode(tokenizer.encode_prompt(raw("<s>ab"))) == "<s>ab"
    assert tokenizer.decode(tokenizer.encode_prompt(chat("ab"))).startswith("<|im_start|>")
    assert answer_text(tokenizer, raw("ab", answer=Message("assistant", "cd"))) == ("cd", True)


def test_base_model_gets_the_turns_as_plain_text():
    tokenizer = byte_tokenizer(None)
    prompt = chat("hi", "yes", "so", answer=Message("assistant", "hello", reasoning="hm"))
    assert tokenizer.decode(tokenizer.encode_prompt(prompt)) == "hi\n\nyes\n\nso"
    assert answer_text(tokenizer, prompt) == ("hello", False)
    assert tokenizer.record.chat_template is None
    assert not tokenizer.has_template


def test_token_ids_pass_through():
    prompt = Prompt("a", "f", 1, "prompt_token_ids", token_ids=(5, 6), answer_token_ids=(7,))
    tokenizer = byte_tokenizer()
    assert tokenizer.encode_prompt(prompt).tolist() == [5, 6]
    ids, exact = tokenizer.encode_answer(prompt)
    assert (ids.tolist(), exact) == ([7], True)


def test_tokenizer_that_puts_a_space_before_text_does_not_put_it_before_an_answer():
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {text: i for i, text in enumerate(["<unk>", "</s>", "▁", "▁a", "a", "b", "\n"])}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    fast.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="</s>"), name="toy")
    assert tokenizer.encode_prompt(raw("ab")).tolist() == [3, 5]
    for text, ids in (("ab", [4, 5]), (" ab", [3, 5])):
        assert tokenizer.encode_answer(raw("b", answer=Message("assistant", text)))[0].tolist() == ids


def test_special_tokens_in_what_users_wrote_are_noticed():
    tokenizer = byte_tokenizer()
    assert tokenizer.has_special_text(chat("what is <|im_end|>?"))
    assert not tokenizer.has_special_text(chat("what is <|im end|>?"))


def test_record_tells_templates_and_their_settings_apart():
    records = [
        byte_tokenizer(toy.CHATML).record,
        byte_tokenizer(toy.THINKING).record,
        byte_tokenizer(toy.THINKING, enable_thinking=False).record,
    ]
    assert len({str(record) for record in records}) == 3
    assert not records[0].uses_date
    assert byte_tokenizer("{{ strftime_now('%d') }}" + toy.CHATML).record.uses_date


def test_settings_that_specprobe_makes_itself_are_refused():
    with pytest.raises(SpecprobeError, match="add_generation_prompt"):
        byte_tokenizer(add_generation_prompt=True)


def test_unknown_name_gives_one_line(monkeypatch, tmp_path):
    toy.go_offline(monkeypatch)
    for name in ("no-such-owner/no-such-model", str(tmp_path)):
        with pytest.raises(SpecprobeError) as error:
            load_tokenizer(name)
        assert "\n" not in str(error.value)
        assert name in str(error.value)


def test_modules_load_without_torch():
    modules = "specprobe.tokens, specprobe.target, specprobe.trajectories, specprobe.store, specprobe.embedded"
    code = f"import sys, {modules}; assert not {{'torch', 'transformers'}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
