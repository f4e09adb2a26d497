"""What runs the engine of a desk: a model on this machine, or a step time modelled for an accelerator."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from minillm import catalog, hub
from minillm.backends import create_backend
from minillm.backends.memory import available_host_bytes
from minillm.backends.simulated import SimulatedBackend, Weightless
from minillm.config import Locations
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams, uniform
from minillm.costs import pcie_bytes_per_s
from minillm.grammar import Grammar
from minillm.models.load import LoadedModel, load_model
from minillm.speculation import speculation_for
from minillm.structured import compile_grammar, vocabulary_of
from visualizers.desk.clock import DeskClock, ModelledClock, WorkClock
from visualizers.desk.setup import DeskError, Setup
from visualizers.desk.uncached import Uncached
from visualizers.runs.modelled import step_time

IN_BROWSER = sys.platform == "emscripten"
_SEED = 7
_ORDINARY = 1000  # token ids below this are control tokens and single bytes in the bundled vocabulary


class Machine(Protocol):
    """What a session asks of whatever runs its engines."""

    name: str  # of the recipe
    device: str  # what the reader is told: the processor or the accelerator
    model: str
    modelled: bool

    def load(self) -> None:
        """Fetches and reads what takes long; :class:`DeskError` where that can't be had."""

    def build(self, setup: Setup, side: str) -> tuple[Engine, DeskClock]:
        """A new engine with nothing known of earlier requests."""

    def encode(self, prompt: str | int, number: int) -> list[int]:
        """Token ids of a prompt; a number stands for so many tokens of no meaning, others for each ``number``."""

    def params(self, setup: Setup, max_tokens: int, number: int) -> SamplingParams:
        """How request ``number`` is sampled by an engine of this setup."""

    def kv_token_bytes(self, engine: Engine) -> int:
        """Bytes of keys and values of one token."""


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    if IN_BROWSER:
        return "the browser's Python"
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def devices() -> dict[str, tuple[str, str, str]]:
    """What can run a model here, the quickest first: a name to backend, device, and what the reader is told."""
    found = {"numpy": ("numpy", "cpu", f"NumPy, {processor()}")}
    if importlib.util.find_spec("torch"):
        found["torch"] = ("torch", "cpu", f"PyTorch, {processor()}")
        if shutil.which("nvidia-smi"):  # importing torch takes seconds: only where there is something to find
            import torch

            if torch.cuda.is_available():
                return {"cuda": ("torch", "cuda", f"PyTorch, {torch.cuda.get_device_name()}"), **found}
    return found


@dataclass
class RealMachine:
    """A model by name or path, loaded once, on a backend for each side."""

    model: str = "tiny"
    name: str = ""  # of ``devices``; empty takes the first
    modelled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        known = devices()
        self.name = self.name or next(iter(known))
        if self.name not in known:
            raise DeskError(f"nothing called {self.name!r} runs a model here: choose from {', '.join(known)}")
        self._backend, self._torch_device, self.device = known[self.name]
        self._backends: dict[str, Any] = {}
        if self._backend == "torch" and self._torch_device == "cpu":
            import torch

            # Beside a browser, threads that wait for each other cost more than they bring.
            torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))

    @cached_property
    def loaded(self) -> LoadedModel:
        need, have = needed_bytes(self.model), available_host_bytes()
        if not IN_BROWSER and need > have:
            raise DeskError(
                f"{self.model} needs about {need / 1e9:.1f} GB and {have / 1e9:.1f} GB are free: choose a smaller model"
            )
        try:
            return load_model(hub.resolve(self.model, where=Locations(), say=lambda text: None))
        except (ValueError, OSError) as error:
            raise DeskError(f"{self.model} cannot be loaded: {error}") from error

    def load(self) -> None:
        self._backend_of("A", Setup())

    def _backend_of(self, side: str, setup: Setup) -> Any:
        """Weights ready to run; each side has its own, for its KV memory lies beside them."""
        if side not in self._backends:
            backend = self._new_backend(self.loaded)
            _warm_up(Engine(backend, replace(setup.config(), policy="continuous")))
            self._backends[side] = backend
        return self._backends[side]

    @cached_property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer()

    def build(self, setup: Setup, side: str) -> tuple[Engine, DeskClock]:
        if setup.link != Setup.link:
            raise DeskError("the link of this machine is what it is: change it in modelled time")
        _check_uncached(setup)
        clock = WorkClock()
        try:
            backend = self._backend_of(side, setup)
            speculate = setup.speculation()
            speculation = None
            if speculate is not None:
                speculation = speculation_for(
                    speculate, self.loaded, backend, lambda name: hub.BUNDLED / name, self._new_backend
                )
            tokenizer = self.tokenizer
            engine = Engine(
                backend if setup.kv_cache == "on" else Uncached(backend),
                setup.config(),
                eos_ids=tokenizer.eos_ids,
                tokenizer=tokenizer,
                clock=clock,
                speculation=speculation,
            )
        except (ValueError, RuntimeError) as error:
            raise DeskError(str(error)) from error
        return engine, clock

    def _new_backend(self, model: LoadedModel) -> Any:
        return create_backend(model, backend=self._backend, device=self._torch_device)

    def encode(self, prompt: str | int, number: int) -> list[int]:
        if isinstance(prompt, int):
            return _drawn_ids(prompt, number, min(_ORDINARY, self.tokenizer.vocab_size - 1), self.tokenizer.vocab_size)
        ids: list[int] = self.tokenizer.encode(prompt)
        first = self.tokenizer.bos_id
        return [first, *ids] if self.tokenizer.adds_bos and first is not None else ids

    def params(self, setup: Setup, max_tokens: int, number: int) -> SamplingParams:
        grammar = self.grammar if setup.grammar == "schema" else None
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=float(setup.temperature),
            seed=_SEED + number,
            ignore_eos=grammar is None,  # a grammar alone says where an answer ends
            grammar=grammar,
        )

    @cached_property
    def grammar(self) -> Grammar:
        """The schema of the chapter on structured output, compiled for this model's vocabulary."""
        from visualizers.runs.structured_run import GRAMMARS  # here, for what else it brings

        source = GRAMMARS["schema"]
        return compile_grammar(source.kind, source.text, vocabulary_of(self.tokenizer, self.loaded.spec.vocab_size))

    def kv_token_bytes(self, engine: Engine) -> int:
        return engine.capacity.kv_bytes_per_token


@dataclass
class ModelledMachine:
    """The same scheduler with no weights: a step lasts as long as the roofline of an accelerator says."""

    model: str = "llama-3.1-8b"
    name: str = "h100-sxm"
    modelled: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        try:
            self._target, self._accelerator = catalog.model(self.model), catalog.accelerator(self.name)
        except (LookupError, ValueError) as error:
            raise DeskError(str(error)) from error
        self.device = f"{self._accelerator.title}, {self._target.title} in bf16, modelled time"

    def load(self) -> None:
        pass

    def build(self, setup: Setup, side: str) -> tuple[Engine, DeskClock]:
        if setup.speculate != "none":
            raise DeskError(
                "modelled time has no model whose drafts could be kept: compare drafts on this machine's clock"
            )
        if setup.grammar != "none":
            raise DeskError("modelled time writes no text that could follow a grammar: choose this machine's clock")
        _check_uncached(setup)
        clock, config = ModelledClock(), setup.config()
        inner = Weightless(max_model_len=self._target.context_tokens, vocab_size=4096)
        block_bytes = config.block_size * self._target.kv_bytes_per_token("bf16")
        link, num_blocks = pcie_bytes_per_s(int(setup.link)), config.num_blocks or 0

        def copy_time(pairs: Sequence[tuple[int, int]]) -> float:
            """Of those over the link: host blocks follow the device's."""
            return float(sum(max(pair) >= num_blocks for pair in pairs) * block_bytes / link)

        backend = SimulatedBackend(inner, step_time(self._target, self._accelerator), clock, copy_time)
        return Engine(backend if setup.kv_cache == "on" else Uncached(backend), config, clock=clock), clock

    def encode(self, prompt: str | int, number: int) -> list[int]:
        if isinstance(prompt, int):
            return _drawn_ids(prompt, number, 0, 4096)
        return [byte for byte in prompt.encode()]  # a byte a token: there is no tokenizer

    def params(self, setup: Setup, max_tokens: int, number: int) -> SamplingParams:
        return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)

    def kv_token_bytes(self, engine: Engine) -> int:
        return int(self._target.kv_bytes_per_token("bf16"))


def _check_uncached(setup: Setup) -> None:
    if setup.kv_cache == "off" and setup.speculate != "none":
        raise DeskError("drafts stand in the KV cache until they are verified: leave it on, or draft nothing")


def _warm_up(engine: Engine) -> None:
    """Two tokens of nobody's prompt: a first step pays for memory that no later one touches anew."""
    engine.add_request([0], SamplingParams(max_tokens=2, temperature=0))
    while engine.has_work():
        engine.step()


def _drawn_ids(count: int, number: int, low: int, high: int) -> list[int]:
    return [low + int(uniform(number, i) * (high - low)) for i in range(count)]


def machine(clock: str, model: str) -> Machine:
    """``clock`` is ``machine``, ``machine/DEVICE``, or ``modelled/ACCELERATOR``. Raises :class:`DeskError`."""
    kind, _, name = clock.partition("/")
    if kind == "machine":
        return RealMachine(model, name)
    if kind == "modelled":
        return ModelledMachine(model, name or "h100-sxm")
    raise DeskError(f"there is no clock {clock!r}: choose machine, machine/DEVICE or modelled/ACCELERATOR")


def clocks() -> dict[str, str]:
    """What a run can be timed by, with what the reader sees."""
    found = {f"machine/{name}": f"this machine: {told}" for name, (_, _, told) in devices().items()}
    return found | {f"modelled/{slug}": f"modelled time: {one.title}" for slug, one in catalog.accelerators().items()}


def models(modelled: bool) -> dict[str, str]:
    """What can be chosen on such a clock, each with its memory."""
    if modelled:
        return {
            slug: f"{one.title}, {one.weight_bytes('bf16') / 1e9:,.1f} GB in bf16"
            for slug, one in catalog.models().items()
        }
    return {entry.name: _memory_of(entry) for entry in hub.catalogue(Locations()) if entry.path or not IN_BROWSER}


def _memory_of(entry: hub.ModelEntry) -> str:
    if entry.path is None:
        return f"{entry.name}: {entry.description}, fetched when it is chosen"
    return f"{entry.name}, about {needed_bytes(entry.name) / 1e6:,.0f} MB in memory"


def needed_bytes(model: str) -> int:
    """Memory that the weights of a model on disk take in float32, from its parameters' stored size. 0: not known."""
    entries = {entry.name: entry.path for entry in hub.catalogue(Locations())}
    path = entries.get(model) or Path(model).expanduser()
    if path is None or not path.exists():
        return 0
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    stored = sum(file.stat().st_size for file in files)
    return stored * _widening(files)


def _widening(files: list[Path]) -> int:
    """How many times larger float32 is than what is stored: 4-bit blocks, bytes, or 16-bit floats."""
    if any(file.suffix == ".gguf" for file in files):
        return 6
    return 4 if hub.BUNDLED in (file.parent.parent for file in files) else 2


def memory_bytes() -> tuple[str, int]:
    """What is measured as memory here, and its bytes now: of the card, the process, or the browser's Python."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return "memory on the GPU", int(torch.cuda.memory_allocated())
    if IN_BROWSER:
        import pyodide_js  # type: ignore[import-not-found]

        return "memory of the browser's Python", int(pyodide_js._module.HEAPU8.length)
    import psutil  # type: ignore[import-untyped]

    return "memory of the process", int(psutil.Process().memory_info().rss)
