"""A catalogued accelerator, or a machine that was measured, in base units."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minillm.catalog.source import CatalogError, Source, take
from minillm.costs import roofline
from minillm.costs.check import CostError, positive
from minillm.costs.dtypes import number_format


@dataclass(frozen=True)
class Accelerator:
    """One part number. ``memory_bytes`` is the data sheet's figure read as printed (80 GB = 80e9 bytes).

    ``reported_memory_bytes`` is the total that the driver reports, which is larger: on these sheets a GB
    of capacity is close to a GiB. ``dense_flops`` maps a number format to FLOP/s without sparsity.
    """

    slug: str
    title: str
    memory_bandwidth: float  # bytes/s
    memory_bytes: float
    dense_flops: Mapping[str, float]  # FLOP/s
    reported_memory_bytes: int | None = None
    sparsity_factor: float = 1.0  # printed "with sparsity" = this x dense
    source: Source | None = None

    def __post_init__(self) -> None:
        positive(memory_bandwidth=self.memory_bandwidth, memory_bytes=self.memory_bytes, **self.dense_flops)
        if self.reported_memory_bytes is not None:
            positive(reported_memory_bytes=self.reported_memory_bytes)

    def flops(self, dtype: str, sparse: bool = False) -> float:
        """Peak FLOP/s of arithmetic in ``dtype``, dense unless ``sparse``. fp16 runs as fast as bf16."""
        name = "bf16" if dtype == "fp16" else dtype
        if name not in self.dense_flops:
            raise CostError(f"{self.slug} has no {dtype} peak: the catalogue has {', '.join(self.dense_flops)}")
        return self.dense_flops[name] * (self.sparsity_factor if sparse else 1)

    def flops_for_weights(self, dtype: str) -> float:
        """Dense peak FLOP/s for weights stored in ``dtype``: what the hardware cannot multiply is unpacked to bf16."""
        number_format(dtype)
        return self.flops(dtype if dtype == "fp32" or dtype in self.dense_flops else "bf16")

    def ridge_flops_per_byte(self, dtype: str = "bf16") -> float:
        """The arithmetic intensity from which on arithmetic is the limit."""
        return float(roofline.ridge_flops_per_byte(self.flops(dtype), self.memory_bandwidth))


def parse_accelerator(slug: str, raw: Any) -> Accelerator:
    """An accelerator from its entry in the data file. Raises :class:`CatalogError` with slug and field."""
    where = f"accelerators.json: {slug}"
    number = (int, float)
    fields = take(
        raw,
        where,
        {"title": str, "bandwidth_bytes_per_s": number, "memory_bytes": number, "dense_flops": dict, "source": dict},
        {"reported_memory_mib": int, "sparsity_factor": number, "notes": str},
    )
    reported = fields.get("reported_memory_mib")
    try:
        return Accelerator(
            slug=slug,
            title=fields["title"],
            memory_bandwidth=float(fields["bandwidth_bytes_per_s"]),
            memory_bytes=float(fields["memory_bytes"]),
            dense_flops={name: float(value) for name, value in fields["dense_flops"].items()},
            reported_memory_bytes=None if reported is None else reported * 2**20,
            sparsity_factor=float(fields.get("sparsity_factor", 1)),
            source=Source.parse(fields["source"], f"{where}: source"),
        )
    except CostError as error:
        raise CatalogError(f"{where}: {error}") from None


def measured_machine(
    title: str,
    memory_bandwidth: float,
    memory_bytes: float,
    dense_flops: Mapping[str, float],
    checked: datetime.date,
    how: str,
) -> Accelerator:
    """The machine at hand as an accelerator, from figures measured on it: ``how`` says by what, ``checked`` when."""
    source = Source(None, checked, how)
    return Accelerator("this-machine", title, memory_bandwidth, memory_bytes, dense_flops, source=source)
