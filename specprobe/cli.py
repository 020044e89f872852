"""The command line: parse, call, print. No arithmetic, and nothing heavy is imported before it is needed."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprobe import __version__, completion, defaults
from specprobe.cli_options import (
    BackendChoice,
    DedupeOption,
    DetailsOption,
    DeviceOption,
    DraftSamplingChoice,
    DryRunOption,
    DtypeOption,
    FieldOption,
    FirstTurnOption,
    FormatOption,
    JsonOption,
    MaxPromptsOption,
    PlainOption,
    PreferChoice,
    PromptsArgument,
    RayOption,
    ResponsesChoice,
    RunArgument,
    RunOutOption,
    TrustOption,
)
from specprobe.command_group import CommandGroup, RayCommand, describe_defaults
from specprobe.errors import SpecprobeError
from specprobe.exit_status import GATE_FAILED, MUST_CHANGE, run
from specprobe.option_values import by_depth, json_object, numbers, temperatures

if TYPE_CHECKING:
    from rich.console import RenderableType

    from specprobe.plan import Plan

ONE_LINE: dict[str, Any] = {"separators": (",", ":")}

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    # The columns of rich's help cut long names on 80 columns, and its markup takes [brackets] for its own.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Does speculative decoding pay off on your traffic, with which method and how many draft tokens? Begin with "
    "`specprobe analyze PROMPTS`, then `specprobe recommend`.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"specprobe {__version__}")
        raise typer.Exit


@app.command()
def inspect(
    prompts: PromptsArgument,
    format_name: FormatOption = None,
    prompt_field: FieldOption = None,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is in a prompt log: format, prompts, skips, lengths."""
    from specprobe.progress import OnStderr
    from specprobe.workload import inspect_workload

    if prompt_field == "":
        raise SpecprobeError("--prompt-field: is empty; name a column, or leave it out")
    inspection = inspect_workload(
        prompts, format=format_name, prompt_field=prompt_field, stages=OnStderr(is_plain=plain)
    )
    if as_json:
        _print_json(inspection.to_json())
    else:
        from specprobe.inspect_report import render_inspection

        _print(render_inspection(inspection), plain=plain)
    if inspection.error:
        raise SpecprobeError(inspection.error)


@app.command(cls=RayCommand)
def analyze(
    prompts: PromptsArgument,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Hub id, folder, or a server that writes, such as http://localhost:8000/v1 (its key from "
            "SPECPROBE_API_KEY). Default: embedded, a SmolLM2-135M-Instruct.",
        ),
    ] = None,
    server_model: Annotated[
        str | None, typer.Option("--server-model", help="What the server calls the model. Default: its only one.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds without a byte until the server counts as hanging.")
    ] = defaults.TIMEOUT_SECONDS,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="ngram[:min=2,max=4], suffix, draft:MODEL, pard:MODEL, eagle:MODEL, eagle3:MODEL, mtp, medusa:MODEL, "
            "mlp:MODEL, dflash:MODEL, early-exit:layers=N, hybrid:suffix+draft:MODEL, python:MODULE:CLASS; "
            "may be repeated. Default: ngram and suffix.",
            autocompletion=completion.drafters,
        ),
    ] = None,
    ladder: Annotated[
        Path | None,
        typer.Option("--ladder", help="A file with one drafter a line, # for comments; adds to --drafter."),
    ] = None,
    depth: Annotated[
        int, typer.Option("--depth", help="Most draft tokens per round; all depths up to it are replayed.")
    ] = defaults.DEPTH,
    temperature: Annotated[
        str | None,
        typer.Option(
            "--temperature",
            help="One or more, such as 0,0.7; or log: each row's own, with its other sampling settings. Default: 0; of "
            "logged answers, what their rows say where they agree.",
            autocompletion=completion.temperatures,
        ),
    ] = None,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample from the likeliest tokens of this share.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Sample from so many of the likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Leave out tokens below this share of the likeliest. Not with vLLM.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Divides logits of tokens seen before; 1: none.")
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", help="Off a logit for each time its token was written.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", help="Off a logit whose token was written.")
    ] = 0.0,
    backend: Annotated[
        BackendChoice,
        typer.Option("--backend", help="Who writes responses here: transformers, or the vllm package where it is."),
    ] = BackendChoice.transformers,
    ray: RayOption = None,
    samples: Annotated[int, typer.Option("--samples", help="Responses to each prompt above temperature 0.")] = 1,
    responses: Annotated[
        ResponsesChoice,
        typer.Option(
            "--responses",
            help="auto: logged where every prompt has an answer and no drafter has a model, else generate.",
        ),
    ] = ResponsesChoice.auto,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="The engine that you serve with, whose rules are replayed: vllm, vllm@0.30, vllm-v1, vllm-v2, sglang, "
            "tensorrt-llm, hf, llama.cpp.",
            autocompletion=completion.engines,
        ),
    ] = defaults.ENGINE,
    draft_sampling: Annotated[
        DraftSamplingChoice | None,
        typer.Option(
            "--draft-sampling",
            help="How models draft above temperature 0. Default: every way that the engine offers. n-gram and suffix: "
            "greedy only.",
            show_default=False,
        ),
    ] = None,
    trust_remote_code: TrustOption = False,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Hub id or folder; cuts logged text, or a server's, into tokens."),
    ] = None,
    hidden_states: Annotated[
        Path | None,
        typer.Option(
            "--hidden-states",
            help="For heads on a server: the folder that vLLM's extract_hidden_states writes into, as seen from here.",
        ),
    ] = None,
    target_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--target-checkpoint",
            help="With --hidden-states: Hub id or folder of the served model; its embeddings and head are read.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option("--chat-template-kwargs", help='JSON, for example {"enable_thinking": false}.'),
    ] = None,
    first_turn: FirstTurnOption = False,
    format_name: FormatOption = None,
    prompt_field: FieldOption = None,
    group_by: Annotated[
        str | None,
        typer.Option("--group-by", help="A column of the log to break results down by. Default: the source file."),
    ] = None,
    dedupe: DedupeOption = False,
    max_prompts: MaxPromptsOption = None,
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision",
            help="Draw prompts at random and stop when tokens per round is known this well, such as 0.05 for 5 %. "
            "Default: all prompts.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Longest response to generate.")
    ] = defaults.MAX_NEW_TOKENS,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", help="Context limit of the engine. Default: the target's."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Responses generated together; of a server: requests at once.")
    ] = defaults.BATCH_SIZE,
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampled responses, and of --precision.")] = 0,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            help="Requests in flight: suffix decoding's shared tree sees their tokens interleaved.",
        ),
    ] = 1,
    include_text: Annotated[
        bool,
        typer.Option(
            "--include-text", help="Put prompts and responses themselves into the run. Default: no text anywhere."
        ),
    ] = False,
    out: RunOutOption = None,
    dry_run: DryRunOption = False,
    details: DetailsOption = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Replay drafters over a prompt log: what would be accepted. By position and depth, with curves."""
    from specprobe.analyze import analyze as run_analyze
    from specprobe.causal_lm import LoadOptions
    from specprobe.options import AnalyzeOptions, read_ladder
    from specprobe.processors import Processors
    from specprobe.progress import OnStderr
    from specprobe.run_document import run_text
    from specprobe.run_files import check_out, keep_run
    from specprobe.scan import ReadOptions
    from specprobe.store import TrajectoryStore
    from specprobe.summary import summarize_run

    options = AnalyzeOptions(
        prompts=tuple(prompts),
        target=target,
        tokenizer=tokenizer,
        drafters=(*(drafter or ()), *(read_ladder(ladder) if ladder else ())),
        depth=depth,
        temperatures=temperatures(temperature),
        processors=Processors(
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
        ),
        samples=samples,
        responses=responses.value,
        engine=engine,
        draft_sampling=draft_sampling.value if draft_sampling else None,
        load=LoadOptions(device, dtype, trust_remote_code),
        template_kwargs=json_object(chat_template_kwargs, "--chat-template-kwargs"),
        max_new_tokens=max_new_tokens,
        max_model_len=max_model_len,
        batch_size=batch_size,
        seed=seed,
        in_flight=in_flight,
        precision=precision,
        include_text=include_text,
        backend=backend.value,
        server_model=server_model,
        timeout_seconds=timeout,
        ray=ray,
        hidden_states=hidden_states,
        target_checkpoint=target_checkpoint,
        read=ReadOptions(
            format=format_name,
            prompt_field=prompt_field,
            first_turn=first_turn,
            dedupe=dedupe,
            max_prompts=max_prompts,
            group_by=group_by,
        ),
    )
    if out is not None:
        check_out(out, inputs=(*prompts, ladder))
    if dry_run:
        from specprobe.dry_run import plan_analyze

        _print_plan(plan_analyze(options, OnStderr(is_plain=plain), TrajectoryStore()), as_json=as_json, plain=plain)
        return
    stages = OnStderr(is_plain=plain)
    run = run_analyze(options, stages, TrajectoryStore())
    summary = summarize_run(run, stages)
    try:
        keep_run(lambda: run_text(run, summary), out, has_text=run.has_text)
    finally:
        # The answer is shown even where it cannot be kept, and kept even where nobody reads it to the end.
        if as_json:
            _print_pieces(run_text(run, summary))
            _warn_on_stderr(run.notices)
        else:
            from specprobe.report import render_run

            _print(render_run(run, summary, details=details), plain=plain)


@app.command()
def recommend(
    run_file: RunArgument = None,
    concurrency: Annotated[
        str | None,
        typer.Option("--concurrency", help="Requests in flight: one or more, such as 1,8,64. Default: 1."),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option("--cost", help="A cost file, JSON or CSV. Default: measure the target on this device."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="Predict the cost on this GPU, which need not be here: h100, a100-40gb, rtx4090.",
            autocompletion=completion.gpus,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--tp", help="How many of --gpu share the target. Default: 1.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help="Which of the run's temperatures. Default: what most requests ask for, else the first.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", help="Must be the engine that was replayed; checked.", autocompletion=completion.engines
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The target to time or predict. Default: the run's own.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="Of the timed target: as analyze takes it. With --gpu, how its weights are stored: bf16, fp8, "
            "awq-int4, nvfp4, gguf-q4_k_m. Default: as its checkpoint says.",
        ),
    ] = None,
    device: DeviceOption = None,
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Time again instead of using kept timings.")] = False,
    prefer: Annotated[
        PreferChoice,
        typer.Option("--prefer", help="simple: the easiest to adopt of those within 5 % of the fastest; or fast."),
    ] = PreferChoice.simple,
    gpu_price: Annotated[
        float | None,
        typer.Option("--gpu-price", help="Dollars for an hour of one GPU; gives dollars per million output tokens."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            help="Requests a second, at random times, instead of a concurrency; speed-ups are of latency then.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="When requests come: the times of a trace in Mooncake, Azure or BurstGPT form."),
    ] = None,
    dry_run: DryRunOption = False,
    details: DetailsOption = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether to speculate, with which drafter and how deep. From a run of analyze and what a round costs."""
    from specprobe.advise import ArrivalOptions, advise
    from specprobe.cost_sources import CostOptions
    from specprobe.documents import dump_document
    from specprobe.progress import OnStderr
    from specprobe.run_document import load_run
    from specprobe.run_files import keep_recommendation, last_run

    stages = OnStderr(is_plain=plain)
    run = load_run(run_file or last_run(), stages)
    cost_options = CostOptions(
        file=cost, gpu=gpu, devices=devices, target=target, dtype=dtype, device=device, remeasure=remeasure
    )
    concurrencies = None if concurrency is None else numbers(concurrency, "--concurrency", int)
    arrivals = None if rate is None and trace is None else ArrivalOptions(rate, trace)
    if dry_run:
        from specprobe.dry_run import plan_recommend

        plan = plan_recommend(
            run,
            concurrencies=concurrencies,
            temperature=temperature,
            engine=engine,
            cost_options=cost_options,
            arrivals=arrivals,
            stages=stages,
        )
        _print_plan(plan, as_json=as_json, plain=plain)
        return
    advice = advise(
        run,
        concurrencies=concurrencies,
        temperature=temperature,
        engine=engine,
        cost_options=cost_options,
        stages=stages,
        prefer=prefer.value,
        gpu_price=gpu_price,
        arrivals=arrivals,
    )
    document = dump_document(advice.to_json())
    try:
        keep_recommendation(document)
    finally:
        if as_json:
            print(document)
            _warn_on_stderr(advice.recommendation.notices)
        else:
            from specprobe.recommend_report import render_advice

            _print(render_advice(advice, details=details), plain=plain)


@app.command()
def report(
    run_files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs that analyze wrote. Default: the last one. Several: one page of all.",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page. Default: the report of analyze again.")
    ] = None,
    recommendations: Annotated[
        list[Path] | None,
        typer.Option(
            "--recommendation",
            help="A recommendation (--json) whose verdicts to show; may be repeated. Default: the newest of the run.",
        ),
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="What a run is called, one for each. Default: its file's name.")
    ] = None,
    details: DetailsOption = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run again, on the terminal or as a page (--html). The page has figures, verdict and provenance."""
    from specprobe.progress import OnStderr
    from specprobe.run_files import check_out, last_run

    stages = OnStderr(is_plain=plain)
    paths = run_files or [last_run()]
    if html is not None:
        from specprobe.page.make import make_page
        from specprobe.paths import write_private

        check_out(html, "--html", (*paths, *(recommendations or ())))
        page = make_page(paths, labels or (), recommendations or (), stages)
        write_private(html.resolve(), page.html)
        if as_json:
            _print_json(page.to_json(html))
        else:
            _print(page.in_words(html), plain=plain)
        return
    if len(paths) > 1 or recommendations or labels:
        raise SpecprobeError("report: several runs, --recommendation and --label are for a page; add --html FILE")
    from specprobe.run_document import load_run, run_text
    from specprobe.summary import summarize_run

    run = load_run(paths[0], stages)
    summary = summarize_run(run, stages)
    if as_json:
        _print_pieces(run_text(run, summary))
    else:
        from specprobe.report import render_run

        _print(render_run(run, summary, details=details), plain=plain)


@app.command()
def compare(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="A run that analyze wrote: before.",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", help="Another one: after.", show_default=False, autocompletion=completion.runs),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Compare although workload, target, template or engine rules differ.")
    ] = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what changed from run A to run B, prompt by prompt. And whether these prompts can tell."""
    from specprobe.compare import compare as compare_runs
    from specprobe.progress import OnStderr
    from specprobe.run_document import load_run

    stages = OnStderr(is_plain=plain)
    comparison = compare_runs(load_run(a, stages), load_run(b, stages), force=force, stages=stages)
    if as_json:
        _print_json(comparison.to_json())
    else:
        from specprobe.compare_report import render_comparison

        _print(render_comparison(comparison), plain=plain)


@app.command()
def gate(
    run_file: RunArgument = None,
    min_acceptance_length: Annotated[
        float | None, typer.Option("--min-acceptance-length", help="Least mean acceptance length, as vLLM counts it.")
    ] = None,
    min_tokens_per_round: Annotated[
        float | None, typer.Option("--min-tokens-per-round", help="Least tokens per round.")
    ] = None,
    min_speedup: Annotated[
        float | None, typer.Option("--min-speedup", help="Least speed-up; needs --recommendation.")
    ] = None,
    recommendation: Annotated[
        Path | None, typer.Option("--recommendation", help="What `recommend --json` wrote for this run.")
    ] = None,
    max_regression: Annotated[
        str | None,
        typer.Option(
            "--max-regression", help="Largest loss of tokens per round, such as 5% or 0.05; needs --baseline."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="The run to hold this one against, paired by prompt.",
            autocompletion=completion.runs,
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", help="Whose result, as the report names it. Default: most tokens per round."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", help="At which depth. Default: most tokens per round.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Which of the run's temperatures, where it has several.")
    ] = None,
    allow_undecided: Annotated[
        bool | None,
        typer.Option(
            "--allow-undecided/--no-allow-undecided",
            help="Pass what these prompts are too few to decide. Default: it fails.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool | None,
        typer.Option("--force/--no-force", help="Compare with a baseline that is not comparable.", show_default=False),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write a JUnit report to this file.")] = None,
    summary: Annotated[
        Path | None,
        typer.Option("--summary", help="Append a summary in Markdown to this file. Default: $GITHUB_STEP_SUMMARY."),
    ] = None,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Hold a run against thresholds, for CI: exit 1 if one fails. Decided on intervals. Also from specprobe.toml."""
    from specprobe.gate import run_gate
    from specprobe.gate_files import gate_files
    from specprobe.gate_report import failure_lines
    from specprobe.gate_settings import gate_settings, parse_share
    from specprobe.progress import OnStderr
    from specprobe.run_document import load_run
    from specprobe.run_files import last_run

    settings = gate_settings(
        {
            "min_acceptance_length": min_acceptance_length,
            "min_tokens_per_round": min_tokens_per_round,
            "min_speedup": min_speedup,
            "max_regression": None if max_regression is None else parse_share(max_regression, "--max-regression"),
            "baseline": baseline,
            "recommendation": recommendation,
            "drafter": drafter,
            "depth": depth,
            "temperature": temperature,
            "allow_undecided": allow_undecided,
            "force": force,
        },
        Path.cwd(),
    )
    files = gate_files(junit, summary)
    files.check((run_file, settings.baseline, settings.recommendation))
    stages = OnStderr(is_plain=plain)
    result = run_gate(load_run(run_file or last_run(), stages), settings, stages)
    if as_json:
        _print_json(result.to_json())
    else:
        from specprobe.gate_report import render_gate

        _print(render_gate(result), plain=plain)
    for line in failure_lines(result):
        print(line, file=sys.stderr)
    files.write(result)
    if not result.passed:
        raise typer.Exit(GATE_FAILED)


@app.command()
def fit(
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", help="DEPTH=ACCEPTANCE_RATE, such as 2=0.454; may be repeated."),
    ] = None,
    length: Annotated[
        list[str] | None,
        typer.Option("--length", help="DEPTH=MEAN_ACCEPTANCE_LENGTH, such as 3=2.07; may be repeated."),
    ] = None,
    metrics: Annotated[
        list[Path] | None,
        typer.Option(
            "--metrics",
            metavar="FILE",
            help="What an engine counted: answers, /metrics text, a log, a benchmark's result "
            "(docs/engine-numbers.md). Two of /metrics are before and after; files of answers are read together.",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option("--depth", help="With --metrics: the most draft tokens, if the engine does not say."),
    ] = None,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict acceptance at other depths from that at some. As published, or as an engine counted it."""
    from specprobe.curve import fit_document, fit_lengths, fit_rates

    if sum(map(bool, (rate, length, metrics))) != 1:
        raise SpecprobeError(
            "fit: give either --rate, --length or --metrics, for example --rate 2=0.454 --rate 3=0.356"
        )
    if depth is not None and not metrics:
        raise SpecprobeError("--depth: is for --metrics; write --rate DEPTH=RATE")
    engine_numbers = None
    if metrics:
        from specprobe.engine_numbers import read_engine_numbers
        from specprobe.engine_numbers.fit import fit_engine_numbers

        engine_numbers = read_engine_numbers(metrics, depth)
        fitted = fit_engine_numbers(engine_numbers)
    else:
        fitted = fit_rates(by_depth(rate, "--rate")) if rate else fit_lengths(by_depth(length or [], "--length"))
    if as_json:
        counted = {"engine_numbers": engine_numbers.to_json()} if engine_numbers else {}
        _print_json(fit_document(fitted) | counted)
        _warn_on_stderr(fitted.notices)
    else:
        from specprobe.report import render_fit

        if engine_numbers:
            from specprobe.engine_numbers.report import render_engine_numbers

            _print(render_engine_numbers(engine_numbers), plain=plain)
        _print(render_fit(fitted), plain=plain)


@app.command("import")
def import_numbers(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="What an engine counted, as `fit --metrics` takes it.", show_default=False
        ),
    ],
    drafter: Annotated[
        str, typer.Option("--drafter", help="What the server drafted with, such as eagle3:MODEL.", show_default=False)
    ],
    temperature: Annotated[float, typer.Option("--temperature", help="Of the requests.", show_default=False)],
    draft_sampling: Annotated[
        DraftSamplingChoice,
        typer.Option("--draft-sampling", help="How it drafted above temperature 0: greedy, sampled."),
    ] = DraftSamplingChoice.greedy,
    depth: Annotated[
        int | None, typer.Option("--depth", help="The most draft tokens, where the engine does not say.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="NAME or NAME@VERSION. Default: the engine that the file is of.")
    ] = None,
    out: RunOutOption = None,
    details: DetailsOption = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a run of what an engine counted itself. For recommend, compare and gate."""
    from specprobe.engine_numbers.imports import ImportOptions, import_run
    from specprobe.run_document import run_text
    from specprobe.run_files import check_out, keep_run
    from specprobe.summary import summarize_run

    if out is not None:
        check_out(out, inputs=files)
    run = import_run(
        ImportOptions(tuple(files), drafter, temperature, draft_sampling.value, depth=depth, engine=engine)
    )
    summary = summarize_run(run)
    keep_run(lambda: run_text(run, summary), out)
    if as_json:
        _print_pieces(run_text(run, summary))
        _warn_on_stderr(run.notices)
    else:
        from specprobe.report import render_run

        _print(render_run(run, summary, details=details), plain=plain)


@app.command()
def calibrate(
    points: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[POINTS]...",
            help="Measured points, CSV or JSON (docs/cost.md), or results of `vllm bench serve`.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The target that was measured: a name, or a folder with config.json.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="What it ran on, such as h200, or cpu.", autocompletion=completion.gpus),
    ] = None,
    tp: Annotated[int, typer.Option("--tp", help="Over how many of them each layer was split.")] = 1,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Weights: bf16, fp8, awq-int4, float32 and so on. Default: the checkpoint's."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="What served it: vllm, sglang, trtllm, hf, llama.cpp, mlx.")
    ] = defaults.ENGINE,
    depth: Annotated[
        int, typer.Option("--depth", help="Most draft tokens per round that the cost file is for.")
    ] = defaults.DEPTH,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="A drafter that the cost file is to have beside ngram, suffix and those of the points: draft:MODEL, "
            "eagle3 and so on; may be repeated.",
            autocompletion=completion.drafters,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", help="Time a live server, such as http://localhost:8000/v1, started without speculation."
        ),
    ] = None,
    server_model: Annotated[
        str | None, typer.Option("--server-model", help="What the server calls the model. Default: its only one.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="With --server: requests at once, such as 1,4,16.")
    ] = "1,4,16",
    context: Annotated[str, typer.Option("--context", help="With --server: prompt tokens, such as 256,2048.")] = "256",
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="With --server: tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", help="With --server: how often each level is timed.")] = 3,
    timeout: Annotated[
        float, typer.Option("--timeout", help="With --server: seconds without a byte until it counts as hanging.")
    ] = 120.0,
    keep_points: Annotated[
        Path | None,
        typer.Option(
            "--keep-points", help="With --server: a file for the points; what it holds already is not timed again."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The cost file. Default: .specprobe/calibrated.json.")
    ] = None,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the cost model to measured step times, for recommend. It is saved as a cost file."""
    from specprobe.calibrate_run import CalibrateOptions, ServerOptions, run_calibration
    from specprobe.engine_probe import ProbePlan
    from specprobe.progress import OnStderr
    from specprobe.server import check_timeout

    plan = ProbePlan(
        concurrencies=numbers(concurrency, "--concurrency", int),
        contexts=numbers(context, "--context", int),
        output_tokens=output_tokens,
        repeats=repeats,
    )
    check_timeout(timeout)
    asked = None if server is None else ServerOptions(server, server_model, plan, timeout, keep_points)
    options = CalibrateOptions(
        points=tuple(points or ()),
        server=asked,
        model=model,
        gpu=gpu,
        devices=tp,
        dtype=dtype,
        engine=engine,
        depth=depth,
        drafters=tuple(drafter or ()),
        out=out,
    )
    calibration, path = run_calibration(options, OnStderr(is_plain=plain))
    if as_json:
        _print_json(calibration.to_json(path))
        _warn_on_stderr(calibration.notices)
    else:
        from specprobe.calibrate_report import render_calibration

        _print(render_calibration(calibration, path), plain=plain)


@app.command()
def bench(
    prompts: PromptsArgument,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", help="The server without speculation, such as http://localhost:8000/v1.", show_default=False
        ),
    ] = None,
    speculative: Annotated[
        str | None,
        typer.Option("--speculative", help="The server with it. Not with --start.", show_default=False),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start", help="A command that starts the server without speculation at --server.", show_default=False
        ),
    ] = None,
    start_speculative: Annotated[
        str | None,
        typer.Option("--start-speculative", help="Likewise with it, at the same address.", show_default=False),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option("--start-timeout", help="Seconds until a started server must answer.")
    ] = 600.0,
    server_model: Annotated[
        str | None, typer.Option("--server-model", help="What the servers call the model. Default: their only one.")
    ] = None,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Requests in flight, such as 1,4,16.")] = "1",
    repeats: Annotated[int, typer.Option("--repeats", help="How often both arms are measured, in turn.")] = 3,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Where answers are cut.")] = (
        defaults.MAX_NEW_TOKENS
    ),
    temperature: Annotated[float, typer.Option("--temperature", help="Of both arms.")] = 0.0,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            help="What the speculative server runs, as analyze takes it; its counters are held against the replay.",
            show_default=False,
        ),
    ] = None,
    depth: Annotated[
        int, typer.Option("--depth", help="The server's draft tokens per round, for --drafter.")
    ] = defaults.DEPTH,
    engine: Annotated[
        str, typer.Option("--engine", help="Whose rules it drafts by, as analyze takes it.")
    ] = defaults.ENGINE,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Hub id or folder, where the server tells no token ids.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Hub id or folder, for drafters that read its states and for --gpu."),
    ] = None,
    cost: Annotated[
        Path | None, typer.Option("--cost", help="A cost file: predict with it, for --drafter.", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Predict by the roofline of this GPU, for --drafter.")
    ] = None,
    recommendation: Annotated[
        Path | None,
        typer.Option("--recommendation", help="What `recommend --json` wrote: the prediction to hold against."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds without a byte until a server counts as hanging.")
    ] = 600.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the order of prompts, and of sampled answers.")] = 0,
    first_turn: FirstTurnOption = False,
    format_name: FormatOption = None,
    prompt_field: FieldOption = None,
    dedupe: DedupeOption = False,
    max_prompts: MaxPromptsOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The document, kept after every pass; `calibrate` reads it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Use what an interrupted bench of the same settings has finished.")
    ] = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a real server with and without speculation. Beside the prediction; exit 1 if its output is broken."""
    from specprobe.bench.document import bench_document
    from specprobe.bench.options import bench_cost, bench_replay, bench_servers
    from specprobe.bench.plan import BenchPlan
    from specprobe.bench.run import BenchOptions, run_bench
    from specprobe.progress import OnStderr
    from specprobe.scan import ReadOptions

    urls, commands = bench_servers(server, speculative, start, start_speculative, start_timeout)
    options = BenchOptions(
        prompts=tuple(prompts),
        read=ReadOptions(
            format=format_name,
            prompt_field=prompt_field,
            first_turn=first_turn,
            dedupe=dedupe,
            max_prompts=max_prompts,
            group_by=None,
        ),
        plan=BenchPlan(numbers(concurrency, "--concurrency", int), repeats, max_new_tokens, temperature, seed),
        urls=urls,
        commands=commands,
        model=server_model,
        timeout_seconds=timeout,
        replay=bench_replay(drafter, depth, engine, tokenizer, target),
        cost=bench_cost(cost, gpu, target),
        recommendation=recommendation,
        out=out,
        resume=resume,
    )
    with run_bench(options, OnStderr(is_plain=plain)) as result:
        if as_json:
            _print_json(bench_document(result))
            _warn_on_stderr(result.notices)
        else:
            from specprobe.bench.report import render_bench

            _print(render_bench(result), plain=plain)
    if result.broken:
        raise typer.Exit(GATE_FAILED)


@app.command()
def backtest(
    table: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="Measured speed-ups, in the columns of docs/validation.md.")
    ],
    calibrated: Annotated[
        bool,
        typer.Option("--calibrated", help="Fit constants to a few cells of the table and judge the others."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the cells that are fitted to.")] = 0,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Judge the cost model against results that were measured. Verdicts, errors, depths, crossovers."""
    from specprobe.backtest import backtest as run_backtest

    result = run_backtest(table, calibrated=calibrated, seed=seed)
    if as_json:
        _print_json(result.to_json())
    else:
        from specprobe.backtest_report import render_backtest

        _print(render_backtest(result), plain=plain)


@app.command()
def export(
    run_file: RunArgument = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="E",
            help="Settings of an engine, with or without @VERSION: vllm, sglang, tensorrt-llm, llama.cpp, hf; "
            "vllm-synthetic (accepts by the measured rates); profile (speculation_profile.json); aiconfigurator.",
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows",
            metavar="FILE",
            help="A table with a row for each response, drafter, temperature, draft sampling and depth; .csv or "
            ".parquet.",
        ),
    ] = None,
    recommendation: Annotated[
        Path | None,
        typer.Option(
            "--recommendation", help="What `recommend --json` wrote for this run: its drafter, depth and schedule."
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", help="Whose result, as the report names it. Default: most tokens per round."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", help="At which depth. Default: most tokens per round.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Which of the run's temperatures, where it has several.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write what --engine gives to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run as settings of an engine, or as a table."""
    from specprobe.progress import OnStderr
    from specprobe.run_document import load_run
    from specprobe.run_files import check_out, last_run

    stages = OnStderr()
    if (rows is None) == (engine is None):
        raise SpecprobeError("export: say what to write, for example --engine vllm, or --rows rows.csv")
    if rows is not None:
        from specprobe.rows import write_rows

        if any(value is not None for value in (recommendation, drafter, depth, temperature, out)):
            raise SpecprobeError("export: --rows takes all results; leave out what chooses one, and --out")
        check_out(rows, "--rows", (run_file,))
        written = write_rows(load_run(run_file or last_run(), stages), rows, stages)
        if as_json:
            _print_json(written.to_json())
        else:
            print(f"wrote {written.rows} rows of {len(written.columns)} columns to {written.file}")
        return
    from specprobe.configuration import export_configuration
    from specprobe.legible import legible
    from specprobe.paths import write_private
    from specprobe.result_choice import Choice

    if recommendation is not None and any(value is not None for value in (drafter, depth, temperature)):
        raise SpecprobeError(
            "export: --recommendation names drafter, depth and temperature; leave out --drafter, --depth and "
            "--temperature"
        )
    if out is not None:
        check_out(out, inputs=(run_file, recommendation))
    exported = export_configuration(
        load_run(run_file or last_run(), stages), str(engine), Choice(drafter, depth, temperature), recommendation
    )
    if out is not None:
        write_private(out.absolute(), exported.text + "\n")
    if as_json:
        _print_json(exported.to_json())
    else:
        for line in exported.text.split("\n") if out is None else [f"wrote {out}"]:
            print(legible(line, "utf-8"))
    _warn_on_stderr(exported.notices)


@app.command()
def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The kind of document, such as run. Default: list them.",
            show_default=False,
            autocompletion=completion.document_names,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the JSON Schema of a kind of document, or list them."""
    from specprobe.schemas import document_kinds, find_kind, list_document

    if name is not None:
        # A schema is no document of specprobe: it describes one.
        print(json.dumps(find_kind(name).schema(), **(ONE_LINE if as_json else {"indent": 2})))
    elif as_json:
        _print_json(list_document())
    else:
        for kind in document_kinds():
            print(f"{kind.name}: {kind.schema()['description']}")


@app.command()
def doctor(
    ctx: typer.Context,
    network: Annotated[bool, typer.Option("--network", help="Also ask whether the Hugging Face Hub answers.")] = False,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine can do, and what is missing. Exit 2 where the main job cannot run."""
    from specprobe.doctor import examine
    from specprobe.progress import OnStderr

    group = ctx.find_root().command
    checkup = examine(OnStderr(is_plain=plain), network=network, defaults=describe_defaults(group, Path.cwd()))
    if as_json:
        _print_json(checkup.to_json())
    else:
        from specprobe.doctor_report import render_checkup

        _print(render_checkup(checkup), plain=plain)
    if not checkup.is_ready:
        raise typer.Exit(MUST_CHANGE)


@app.command()
def clean(as_json: JsonOption = False) -> None:
    """Remove what holds text in .specprobe. Responses, unfinished benches, runs with --include-text, what killed runs
    left. Others stay."""
    from specprobe.store import remove_all_texts
    from specprobe.units import format_bytes, format_plural

    files, freed_bytes = remove_all_texts()
    if as_json:
        _print_json({"schema": "specprobe.clean/1", "files": files, "bytes": freed_bytes})
    else:
        print(f"removed {format_plural(files, 'file')} ({format_bytes(freed_bytes)}) from .specprobe")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 where a gate failed, 2 for what the user must change, 130 when
    interrupted."""
    sys.exit(run_command(arguments))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status; every error of a user is one line on stderr."""
    return run(app, arguments)


def _print(renderable: "RenderableType", *, plain: bool = False) -> None:
    from specprobe.terminal import ReportConsole

    ReportConsole(sys.stdout, is_plain=plain).print(renderable, crop=False)


def _print_json(document: dict[str, Any]) -> None:
    from specprobe.documents import dump_document

    print(dump_document(document))


def _print_pieces(text: Iterable[str]) -> None:
    """A document that is written in pieces."""
    sys.stdout.writelines(text)
    print()


def _print_plan(plan: "Plan", *, as_json: bool, plain: bool) -> None:
    if as_json:
        _print_json(plan.to_json())
        return
    from specprobe.plan_report import render_plan

    _print(render_plan(plan), plain=plain)


def _warn_on_stderr(notices: Sequence[Any]) -> None:
    from specprobe.notice_report import render_notices
    from specprobe.terminal import ReportConsole

    if notices:
        ReportConsole(sys.stderr).print(render_notices(notices), crop=False)
