"""Where the responses to replay come from: the target writes them now, or the log holds them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from specprobe.asked import RequestSet, RequestSets, requests_as_logged, requests_at, requests_of_log
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.options import FROM_LOG, ONE_TEMPERATURE, AnalyzeOptions
from specprobe.processors import PLAIN
from specprobe.profiles import Profile, resolve_profile
from specprobe.progress import Advance, Stages, counting, where_long
from specprobe.prompt import Prompt
from specprobe.spool import Part, Spool
from specprobe.store import describe_damage
from specprobe.trajectories import LOST, TrajectorySet, generated_trajectories, logged_trajectories
from specprobe.trajectory import TokenIds, token_ids
from specprobe.units import format_plural

if TYPE_CHECKING:
    from specprobe.crew import Crew
    from specprobe.endpoint import Endpoint
    from specprobe.mismatch import Mismatch
    from specprobe.served_states import ServedStates
    from specprobe.store import TrajectoryStore
    from specprobe.target import Target
    from specprobe.tokens import Tokenizer
    from specprobe.writing import Elsewhere, Progress


# Cutting so many into tokens may take a second or more.
MANY_PROMPTS = 200
MODELS_SHOWN = 6
"""Names of models that a notice lists, the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who the responses come from, known before there are any: the log, or a target that writes them now.

    `requests`: what is asked, by temperature. `target`: whose weights are here; None of a log that none is named with,
    and where `elsewhere` writes: a server, or an engine that keeps the weights to itself. `states`: the server's, where
    it gives its hidden states. `of_other_models`: prompts left out, since another model answered them.
    `temperature_is_known`: False where neither the log nor the user says.
    """

    mode: Literal["generated", "logged"]
    requests: RequestSets
    target: Target | None
    tokenizer: Tokenizer | None
    profile: Profile
    notices: tuple[Notice, ...] = ()
    of_other_models: int = 0
    elsewhere: Elsewhere | None = None
    temperature_is_known: bool = True
    states: ServedStates | None = None

    @property
    def max_positions(self) -> int | None:
        """The target's context in tokens, where it is known."""
        writer = self.target or self.elsewhere
        return writer.max_positions if writer else None

    @property
    def record(self) -> Mapping[str, Any] | None:
        """What a run keeps of the target; None where there is none."""
        if self.elsewhere is not None:
            checkpoint = {"checkpoint": self.states.frame.record.name} if self.states is not None else {}
            return {**self.elsewhere.record, **checkpoint}
        return asdict(self.target.record) if self.target else None

    def close(self) -> None:
        """End what works for the target in other processes."""
        if self.target is not None:
            self.target.close()

    @property
    def temperatures(self) -> tuple[float, ...]:
        """In the order of the results."""
        return tuple(group.temperature for group in self.requests.sets)


@dataclass(frozen=True, slots=True)
class Sources:
    """Trajectories by temperature, and who they come from; `notices` hold the origin's, too.

    `is_of_target`: False where a log is not what the target named with it writes.
    """

    origin: Origin
    sets: tuple[TrajectorySet, ...]
    mismatches: tuple[Mapping[str, Any], ...] = ()
    is_of_target: bool = True
    notices: tuple[Notice, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every temperature has a response."""
        return all(found.trajectories for found in self.sets)


def open_origin(
    options: AnalyzeOptions, profile: Profile, prompts: Sequence[Prompt], stages: Stages, *, model_free: bool
) -> Origin:
    """Decide where responses come from and load the model or tokenizer that this takes.

    `model_free`: whether all drafters draft from the text alone; then an answered log needs no target.
    """
    if obstacle := profile.processing.obstacle(options.processors):
        option = f"--{obstacle.setting.replace('_', '-')} {obstacle.value:g}"
        raise SpecprobeError(f"{option}: {obstacle.reason}; leave it out, or name another --engine")
    if options.precision is not None:
        # They are drawn at random, and told by which object they are.
        prompts = tuple(prompts)
    if options.responses == "auto" and all(prompt.has_answer for prompt in prompts):
        if options.is_served:
            unused = Notice(
                "answers_not_used",
                "every prompt has a logged answer, but a server was named, so its responses were generated and "
                "replayed; without --target the answers are",
            )
            return _writing_origin(options, profile, prompts, stages, unused, model_free=model_free)
        if not model_free:
            unused = Notice(
                "answers_not_used",
                "every prompt has a logged answer, but a drafter with a model was named, so the target's own responses "
                "were generated and replayed; --responses logged replays the answers",
            )
            return _writing_origin(options, profile, prompts, stages, unused, model_free=model_free)
        if not options.asks_log and len(options.temperatures or ()) > 1:
            raise SpecprobeError(ONE_TEMPERATURE)
        return _logged_origin(options, profile, prompts, stages, model_free=model_free)
    if options.responses == "logged":
        return _logged_origin(options, profile, prompts, stages, model_free=model_free)
    answered = sum(prompt.has_answer for prompt in prompts)
    if options.responses == "auto" and answered and model_free:
        unused = Notice(
            "answers_not_used",
            f"{answered} of {len(prompts)} prompts have logged answers, which are not used since the others have none: "
            "responses are generated; --responses logged replays the answers alone",
        )
        # Now too: generating takes a while, and may be of another model than the log.
        stages.say(unused.message)
        return _writing_origin(options, profile, prompts, stages, unused, model_free=model_free)
    return _writing_origin(options, profile, prompts, stages, model_free=model_free)


def get_responses(
    origin: Origin,
    options: AnalyzeOptions,
    stages: Stages,
    store: TrajectoryStore | None,
) -> Sources:
    """The responses to replay, one set for each temperature, which may be empty."""
    if origin.mode == "logged":
        return _logged(origin, options, stages)
    return _generated(origin, options, stages, store)


def check_complete(sources: Sources) -> None:
    """Raises SpecprobeError where a temperature has no response."""
    for trajectories in sources.sets:
        if not trajectories.trajectories:
            reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(trajectories.skipped.items())) or "none given"
            remedy = _remedy(trajectories, sources.origin.mode == "logged")
            raise SpecprobeError(f"no response to replay (skipped: {reasons}); {remedy}")


def _remedy(found: TrajectorySet, logged: bool) -> str:
    """What to do where nothing is left, by why most were skipped."""
    if logged:
        return "use --responses generate"
    reason = max(found.skipped, key=lambda name: found.skipped[name], default="")
    if reason in LOST:
        return f"they are responses {LOST[reason]}"
    return "check the prompts against the model's context"


def _writing_origin(
    options: AnalyzeOptions,
    profile: Profile,
    prompts: Sequence[Prompt],
    stages: Stages,
    *notices: Notice,
    model_free: bool,
) -> Origin:
    if options.tokenizer is not None and not options.is_served:
        raise SpecprobeError(
            "--tokenizer: is for logged text, and here responses are generated; use --responses logged"
        )
    if options.is_served or options.backend == "vllm":
        # Whoever writes elsewhere is told of them by which object they are.
        prompts = tuple(prompts)
    if options.temperatures == FROM_LOG:
        requests = requests_of_log(prompts, options.processors, profile.processing)
    else:
        requests = requests_at(prompts, options.temperatures or (0.0,), options.processors)
    if options.processors.truncates and not any(group.temperature for group in requests.sets):
        unused = Notice("cuts_without_temperature", "top-k, top-p and min-p change nothing at temperature 0")
        notices = (*notices, unused)
    if options.is_served or options.backend == "vllm":
        writer, states = _open_elsewhere(options, stages, model_free=model_free)
        notices = (*notices, *_other_rules(writer, profile), *requests.notices)
        return Origin("generated", requests, None, writer.tokenizer, profile, notices, elsewhere=writer, states=states)
    target = _load_target(options, stages)
    return Origin("generated", requests, target, target.tokenizer, profile, (*notices, *requests.notices))


def _open_elsewhere(
    options: AnalyzeOptions, stages: Stages, *, model_free: bool
) -> tuple[Elsewhere, ServedStates | None]:
    """Who writes, and its hidden states where they are given."""
    if options.is_served:
        endpoint = _open_endpoint(options, stages, model_free=model_free)
        return endpoint, _open_states(endpoint, options, stages)
    from specprobe.vllm_backend import VllmWriter

    writer = VllmWriter(
        options.target,
        options.load,
        template_kwargs=options.template_kwargs,
        max_model_len=options.max_model_len,
        batch_size=options.batch_size,
        stages=stages,
    )
    return writer, None


def _open_states(endpoint: Endpoint, options: AnalyzeOptions, stages: Stages) -> ServedStates | None:
    if options.hidden_states is None or options.target_checkpoint is None:
        return None
    from specprobe.target_frame import load_frame

    assert endpoint.tokenizer is not None
    stages.say(f"loading embeddings and head of {inert(options.target_checkpoint, 200)}")
    return endpoint.hidden_states(
        options.hidden_states, load_frame(options.target_checkpoint, options.load, endpoint.tokenizer)
    )


def _open_endpoint(options: AnalyzeOptions, stages: Stages, *, model_free: bool) -> Endpoint:
    """The server, and the tokenizer of what it serves where one is named."""
    from specprobe.endpoint import Endpoint

    assert options.target is not None
    is_named = options.tokenizer is not None or options.target_checkpoint is not None
    if not is_named and not model_free:
        raise SpecprobeError(
            "--drafter: a draft model's vocabulary is held against the target's, which a server does not show; name "
            "the served model's tokenizer with --tokenizer"
        )
    tokenizer = _named_tokenizer(options) if is_named else None
    endpoint = Endpoint(
        options.target,
        model=options.server_model,
        tokenizer=tokenizer,
        template_kwargs=options.template_kwargs,
        timeout_seconds=options.timeout_seconds,
        requests_at_once=options.batch_size,
    )
    stages.say(f"asking {inert(endpoint.record['url'], 200)} ({inert(endpoint.name, 80)}, {endpoint.engine})")
    return endpoint


def _other_rules(writer: Elsewhere, profile: Profile) -> tuple[Notice, ...]:
    """A warning where the server is another engine than the one whose rules are replayed."""
    if writer.engine == "unknown":
        return ()
    served = resolve_profile(writer.engine)
    try:
        served = resolve_profile(f"{writer.engine}@{writer.engine_version}")
    except SpecprobeError:
        # A build without a version number.
        if served.engine == profile.engine:
            return ()
    if served.name == profile.name or _is_runner_of(profile, writer):
        return ()
    version = f" {writer.engine_version}" if writer.engine_version else ""
    return (
        Notice(
            "other_engine_serves",
            f"{writer.engine}{version} wrote the responses, and the rules of {profile.name} were replayed: --engine "
            f"{served.name} replays its own",
        ),
    )


def _is_runner_of(profile: Profile, writer: Elsewhere) -> bool:
    """Whether the user named one of the engine's runners, such as vllm-v1, at the version that wrote: which of them a
    server takes it does not say.
    """
    if not profile.engine.startswith(f"{writer.engine}-") or not writer.engine_version:
        return False
    try:
        return resolve_profile(f"{profile.engine}@{writer.engine_version}").name == profile.name
    except SpecprobeError:
        return False


def _named_tokenizer(options: AnalyzeOptions) -> Tokenizer:
    from specprobe.tokens import load_tokenizer

    return load_tokenizer(
        options.tokenizer or options.target_checkpoint,
        template_kwargs=options.template_kwargs,
        trust_remote_code=options.load.trust_remote_code,
    )


def _logged_origin(
    options: AnalyzeOptions, profile: Profile, prompts: Sequence[Prompt], stages: Stages, *, model_free: bool
) -> Origin:
    if not any(prompt.has_answer for prompt in prompts):
        raise SpecprobeError(f"none of {len(prompts)} prompts has a logged answer; use --responses generate")
    given = len(prompts)
    prompts, other_models = _of_one_model(prompts, options.target)
    notices: list[Notice] = []
    if options.temperatures == FROM_LOG:
        answered = Part(prompts, array("q", (i for i, prompt in enumerate(prompts) if prompt.has_answer)))
        requests = requests_of_log(answered, options.processors, profile.processing)
    else:
        temperature, notices = _logged_temperature(options, prompts)
        requests = requests_at(prompts, (temperature,), options.processors)
        if options.temperatures is None:
            # What tells the temperature of a log tells the rest.
            requests = requests_as_logged(prompts, temperature, options.processors)
    notices += [*requests.notices, *other_models]
    if options.samples > 1:
        raise SpecprobeError("--samples: logged answers are what they are; leave it out, or use --responses generate")
    if options.processors != PLAIN and options.target is None:
        notices.append(
            Notice(
                "settings_without_target",
                "sampling settings say how likely the logged text was, which takes the target's probabilities: without "
                "--target they change nothing here",
            )
        )
    warm = any(group.temperature > 0 for group in requests.sets)
    if options.target is None and warm and "sampled" in (options.draft_samplings or ()) and not model_free:
        raise SpecprobeError(
            "--draft-sampling sampled: needs the target's probability of the logged tokens; name it with --target"
        )
    if options.target is None and options.ray is not None:
        raise SpecprobeError(
            "--ray: shares out what the target does, and logged answers are replayed without one; name it with "
            "--target, or leave --ray out"
        )
    target = _load_target(options, stages) if options.target is not None else None
    tokenizer = target.tokenizer if target else None
    holds_text = any(p.token_ids is None or p.answer_token_ids is None for p in prompts if p.has_answer)
    # A draft model's vocabulary is held against the one named, also where rows hold ids.
    if tokenizer is None and (holds_text or (options.tokenizer is not None and not model_free)):
        tokenizer = _named_tokenizer(options)
        if options.tokenizer is None:
            notices.append(
                Notice(
                    "tokenizer_not_named",
                    f"logged text was cut into tokens by {tokenizer.name}, which nobody named; another model's "
                    "tokens accept differently: name the one that wrote the log with --tokenizer or --target",
                )
            )
    return Origin(
        "logged",
        requests,
        target,
        tokenizer,
        profile,
        tuple(notices),
        of_other_models=given - len(prompts),
        temperature_is_known=options.temperatures is not None or any("temperature" in p.settings for p in prompts),
    )


def _of_one_model(prompts: Sequence[Prompt], target: str | None) -> tuple[Sequence[Prompt], list[Notice]]:
    """The prompts that one model answered: the target by name, else the one with most answers. Where the log does not
    say who answered, nothing is left out.

    Acceptance is of one model's text, and a gateway that falls back to another model mixes two.
    """
    counts = Counter(_plain_model(prompt.model) for prompt in prompts if prompt.has_answer and prompt.model)
    if len(counts) < 2:
        return prompts, []
    wanted = _plain_model(target) if target else ""
    model = wanted if wanted in counts else counts.most_common(1)[0][0]
    others = ", ".join(f"{inert(name)} {count}" for name, count in counts.most_common(MODELS_SHOWN) if name != model)
    others_wrote = (bool(p.has_answer and p.model and _plain_model(p.model) != model) for p in prompts)
    kept = Part(prompts, array("q", (place for place, is_left_out in enumerate(others_wrote) if not is_left_out)))
    why = "which is the target's name" if model == wanted else "which wrote most of them"
    return kept, [
        Notice(
            "other_model",
            f"{len(prompts) - len(kept)} logged answers are of other models ({others}) and were left "
            f"out; those of {inert(model)} were replayed, {why}: split the log to replay another",
        )
    ]


def _plain_model(name: str) -> str:
    """Without the provider or folder in front, and without case."""
    return name.rstrip("/").rpartition("/")[2].lower()


def _logged(origin: Origin, options: AnalyzeOptions, stages: Stages) -> Sources:
    """The log's own answers; a named target also judges whether it could have written them."""
    sets, mismatches, is_of_target = [], [], True
    notices = list(origin.notices)
    for group in origin.requests.sets:
        told = where_long(stages, len(group.prompts) >= MANY_PROMPTS and origin.tokenizer is not None)
        with told.track("cutting text into tokens", len(group.prompts)) as advance:
            found = logged_trajectories(
                group.prompts,
                origin.tokenizer,
                temperature=group.temperature,
                asked=group.asked,
                max_model_len=context_limit(options, origin),
                on_prompt=counting(advance, len(group.prompts), "prompts"),
            )
        if origin.target is not None and found.trajectories:
            found, measured = _scored(found, group, origin.target, origin.profile, stages)
            if measured:
                mismatches.append(asdict(measured))
                is_of_target = is_of_target and not measured.is_other_model
                notices += measured.notices()
        sets.append(found)
    return Sources(origin, tuple(sets), tuple(mismatches), is_of_target, tuple(notices))


def _scored(
    found: TrajectorySet, group: RequestSet, target: Target, profile: Profile, stages: Stages
) -> tuple[TrajectorySet, Mismatch | None]:
    """Logged answers with the target's probabilities, and whether it could have written them."""
    _check_vocabulary((ids for t in found.trajectories for ids in (t.prompt_ids, t.output_ids)), target)
    from specprobe.mismatch import measure_mismatch

    count = len(found.trajectories)
    with stages.track(f"scoring {count} logged answers with {inert(target.record.name, 200)}", count) as advance:
        scores = target.score(found.trajectories, profile.processing, counting(advance, count, "answers"))
    scored = Spool(
        replace(t, log_probs=s.log_probs, entropy=s.entropy) for t, s in zip(found.trajectories, scores, strict=True)
    )
    return replace(found, trajectories=scored), measure_mismatch(scores, group.temperature)


def _generated(
    origin: Origin,
    options: AnalyzeOptions,
    stages: Stages,
    store: TrajectoryStore | None,
) -> Sources:
    """Responses that the target writes, one set for each temperature."""
    writer = origin.target or origin.elsewhere
    assert writer is not None
    if origin.target is not None:
        given = chain.from_iterable(group.prompts for group in origin.requests.sets)
        _check_vocabulary((token_ids(p.token_ids) for p in given if p.token_ids is not None), origin.target)
    sets = []
    try:
        for group in origin.requests.sets:
            temperature = group.temperature
            with stages.track(f"generating at temperature {temperature:g}", 1.0) as advance:
                found = generated_trajectories(
                    group.prompts,
                    writer,
                    temperature=temperature,
                    asked=group.asked,
                    samples=options.samples,
                    rule=origin.profile.processing,
                    seed=options.seed,
                    max_new_tokens=options.max_new_tokens,
                    max_model_len=options.max_model_len,
                    batch_size=options.batch_size,
                    store=store,
                    on_prompt=counting(_telling(advance), len(group.prompts), "prompts"),
                    on_progress=_advancing(advance, origin.target.crew if origin.target else None),
                )
            if found.reused:
                stages.say(f"{found.reused} responses at temperature {temperature:g} were there already")
            if found.damage:
                stages.say(f"warning: {describe_damage(found.damage)}")
            sets.append(found)
    finally:
        if origin.elsewhere is not None:
            origin.elsewhere.close()
    return Sources(origin, tuple(sets), notices=origin.notices)


def _logged_temperature(options: AnalyzeOptions, prompts: Sequence[Prompt]) -> tuple[float, list[Notice]]:
    """The temperature of the log: what the user says, else what all rows say, else 0; and what does not fit it."""
    said = {prompt.settings["temperature"] for prompt in prompts if "temperature" in prompt.settings}
    all_say = all("temperature" in prompt.settings for prompt in prompts if prompt.has_answer)
    if options.temperatures is None and len(said) == 1 and all_say:
        return float(said.pop()), []
    assert options.temperatures != FROM_LOG
    temperature = options.temperatures[0] if options.temperatures else 0.0
    if not said - {temperature}:
        return temperature, []
    notice = Notice(
        "other_temperature",
        f"rows of the log say temperature {', '.join(f'{value:g}' for value in sorted(said)[:8])}, the result says "
        f"{temperature:g}: --temperature log replays each row at its own",
    )
    return temperature, [notice]


def _telling(advance: Advance) -> Advance:
    """Before anything is generated, only the note changes."""
    return lambda _done, note: advance(0.0, f"{note} cut into tokens")


def _advancing(advance: Advance, crew: Crew | None) -> Callable[[Progress], None]:
    """Tell a progress bar of the share of tokens that are written; the rest is an upper bound, so it jumps ahead."""

    def on_progress(progress: Progress) -> None:
        done = progress.tokens / max(progress.tokens_at_most, 1)
        by = f", {format_plural(crew.size, 'worker')}" if crew is not None else ""
        advance(done, f"{progress.responses}/{progress.responses_wanted} responses{by}")

    return on_progress


def _load_target(options: AnalyzeOptions, stages: Stages) -> Target:
    from specprobe.target import load_target

    stages.say(f"loading {inert(options.target or 'the embedded target', 200)}")
    target = load_target(options.target, **asdict(options.load), template_kwargs=options.template_kwargs)
    if options.ray is None:
        return target
    from specprobe.ray_crew import with_ray

    return with_ray(target, options, stages)


def context_limit(options: AnalyzeOptions, origin: Origin) -> int | None:
    """The smaller of what the user says and what the model has; None where neither is known."""
    limits = [options.max_model_len, origin.max_positions]
    return min((limit for limit in limits if limit is not None), default=None)


def _check_vocabulary(token_ids: Iterable[TokenIds], target: Target) -> None:
    """Ids that the target does not have belong to another model's tokenizer."""
    largest = max((int(ids.max()) for ids in token_ids if ids.size), default=0)
    if largest >= target.record.vocab_size:
        raise SpecprobeError(
            f"token id {largest} is outside the vocabulary of {target.record.name} ({target.record.vocab_size} ids); "
            "these ids are another model's: name that one with --target"
        )
