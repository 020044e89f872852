"""Accelerators: memory, bandwidth, dense peaks and interconnect, from tables/hardware.csv with a source for each."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from specprobe.errors import SpecprobeError

# Words that name a vendor, a brand or a memory type, and never tell two rows of the table apart.
FILLERS = (
    *("nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "apple", "gpu", "chip", "hbm3e", "hbm3", "hbm2e"),
    *("generation", "edition", "server", "workstation", "blackwell"),
)
MEMORY_WORD = re.compile(r"\d+(gb|g|gib)")
MEMORY_TOLERANCE = 0.15
COUNT_PREFIX = re.compile(r"^\d+\s*[x×*]\s*")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator. Peaks are dense, without sparsity, in operations per second; bandwidths in bytes per second.

    `interconnect_bytes_per_second` is what one device sends to its peers in one direction, 0 where there is none.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_second: float
    flops_16bit: float
    flops_8bit: float
    flops_4bit: float
    interconnect_bytes_per_second: float
    source: str
    has_fp8: bool = True

    def flops(self, bits: float, *, floating: bool = False) -> float:
        """The peak of kernels for weights of this many bits; what the units do not know is expanded to 16.

        `floating`: 8 bits are a floating-point number, which units for integers do not multiply.
        """
        if bits == 8 and floating and not self.has_fp8:
            return self.flops_16bit
        if bits <= 4:
            return self.flops_4bit if self.flops_4bit > self.flops_8bit else self.flops_16bit
        return self.flops_8bit if bits <= 8 else self.flops_16bit


def find_hardware(name: str) -> Hardware:
    """The accelerator that `name` means, however it is written; `a+b` is a model split by layers over two kinds.

    Raises SpecprobeError where the table has none of that name.
    """
    parts = [part for part in name.split("+") if part.strip()]
    found = [_lookup(part) for part in parts]
    if not found or None in found:
        raise SpecprobeError(f"gpu {name!r}: not in the table of hardware; known are {', '.join(hardware_names())}")
    return _layer_split([one for one in found if one is not None])


def one_kind(name: str) -> Hardware:
    """The accelerator that `name` means; raises SpecprobeError where it names several, or how many."""
    if COUNT_PREFIX.match(name.strip()) or "+" in name:
        raise SpecprobeError(f"gpu {name!r}: name one kind, such as h100, and say how many of it with --tp")
    return find_hardware(name)


def hardware_names() -> tuple[str, ...]:
    """Every name of the table."""
    return tuple(dict.fromkeys(hardware.name for hardware in _by_alias().values()))


def _layer_split(parts: list[Hardware]) -> Hardware:
    """Devices that hold an equal share of the layers each and work one after the other: times add up."""
    if len(parts) == 1:
        return parts[0]

    def mean(values: list[float]) -> float:
        return len(values) / sum(1 / value for value in values)

    return Hardware(
        name="+".join(part.name for part in parts),
        memory_bytes=min(part.memory_bytes for part in parts),
        bandwidth_bytes_per_second=mean([part.bandwidth_bytes_per_second for part in parts]),
        flops_16bit=mean([part.flops_16bit for part in parts]),
        flops_8bit=mean([part.flops_8bit for part in parts]),
        flops_4bit=mean([part.flops_4bit for part in parts]),
        interconnect_bytes_per_second=min(part.interconnect_bytes_per_second for part in parts),
        source="; ".join(part.source for part in parts),
        has_fp8=all(part.has_fp8 for part in parts),
    )


def _lookup(name: str) -> Hardware | None:
    text = COUNT_PREFIX.sub("", name.strip().lower()).replace("laptop", "mobile")
    words = [word for word in re.split(r"[^a-z0-9.]+", text) if word and word not in FILLERS]
    without_memory = [word for word in words if not MEMORY_WORD.fullmatch(word)]
    # `NVIDIA H100 80GB HBM3` is an H100, while the memory of an A100 tells two of them apart.
    for candidate in (words, without_memory):
        hardware = _by_alias().get("".join(candidate))
        if hardware is not None and all(_is_its_memory(word, hardware) for word in words):
            return hardware
    return None


def _is_its_memory(word: str, hardware: Hardware) -> bool:
    """Whether a word that names a size of memory can mean this one; sizes are written in two units and rounded."""
    if not MEMORY_WORD.fullmatch(word):
        return True
    gigabytes = int("".join(c for c in word if c.isdigit()))
    return abs(1e9 * gigabytes / hardware.memory_bytes - 1) < MEMORY_TOLERANCE


@cache
def _by_alias() -> dict[str, Hardware]:
    table: dict[str, Hardware] = {}
    text = (files("specprobe") / "tables" / "hardware.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        hardware = Hardware(
            name=row["name"],
            memory_bytes=float(row["memory_gb"]) * 1e9,
            bandwidth_bytes_per_second=float(row["bandwidth_gb_per_s"]) * 1e9,
            flops_16bit=float(row["tflops_16bit"]) * 1e12,
            flops_8bit=float(row["tflops_8bit"]) * 1e12,
            flops_4bit=float(row["tflops_4bit"]) * 1e12,
            interconnect_bytes_per_second=float(row["interconnect_gb_per_s"] or 0) * 1e9,
            source=row["source"],
            has_fp8=row["fp8"] == "yes",
        )
        for alias in (row["name"], *row["aliases"].split(";")):
            words = re.split(r"[^a-z0-9.]+", alias.replace("laptop", "mobile"))
            if compact := "".join(word for word in words if word not in FILLERS):
                table[compact] = hardware
    return table
