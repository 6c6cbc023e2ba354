"""GPUs of this machine, found through the driver's management library: no CUDA context is made.

GPUs are told apart by UUID, because CUDA and the driver may number them differently. Numbers are
those that ``nvidia-smi`` shows; an instance of a GPU that is split (MIG) is ``0:1``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

from dlasm.errors import ClusterError, ParameterError

__all__ = [
    "Gpu",
    "GpuChoice",
    "GpusAsked",
    "bare_uuid",
    "choose_gpus",
    "find_gpus",
    "parse_gpus",
    "uuid_text",
]

GpusAsked: TypeAlias = "str | int | Sequence[str | int] | None"
"""``"auto"`` or None, ``"none"``, or GPUs by number or UUID: ``"0,1"``, ``[0, "GPU-..."]``."""

INSTALL = (
    "in dlasm's source folder, pip install '.[gpu]' for CUDA 12 or '.[gpu-cuda13]' for CUDA 13"
)
"""How to get the packages that the GPU engine needs."""

SMI_SECONDS = 20


@dataclass(frozen=True)
class Gpu:
    """A GPU, or an instance of one.

    Attributes
    ----------
    index : str
        ``"0"``, or ``"0:1"`` for an instance.
    uuid : str
        ``GPU-...`` or ``MIG-...``.
    name : str
        Of the model.
    """

    index: str
    uuid: str
    name: str

    def __str__(self) -> str:
        return f"{self.index} ({self.name}, {self.uuid})"


@dataclass(frozen=True)
class GpuChoice:
    """GPUs to use, and where there are none, why.

    Attributes
    ----------
    gpus : list of Gpu
        May be empty unless some were asked for by name.
    why_none : str
        What is missing, "" if there are GPUs or none was wanted.
    asked : bool
        Whether these GPUs were asked for by number or UUID.
    """

    gpus: list[Gpu]
    why_none: str = ""
    asked: bool = False


def parse_gpus(gpus: GpusAsked) -> str | list[str]:
    """Return ``"auto"``, ``"none"``, or GPUs by number or UUID.

    Raises
    ------
    ParameterError
        If it is none of these, or a GPU is named twice.

    Examples
    --------
    >>> parse_gpus(None), parse_gpus("0,1"), parse_gpus([0, "MIG-41b3359c"]), parse_gpus([])
    ('auto', ['0', '1'], ['0', 'MIG-41b3359c'], 'none')
    """
    if gpus is None or (isinstance(gpus, str) and gpus in ("auto", "none")):
        return gpus or "auto"
    if isinstance(gpus, str):
        parts: list[Any] = gpus.split(",")
    elif isinstance(gpus, Iterable) and not isinstance(gpus, (bytes, bytearray, Mapping, Set)):
        parts = list(gpus)
    else:
        parts = [gpus]
    asked = [str(part).strip() for part in parts]
    for part, text in zip(parts, asked, strict=True):
        is_kind = isinstance(part, (str, Integral)) and not isinstance(part, bool)
        if not is_kind or not re.fullmatch(r"\d+(:\d+)?|(GPU|MIG)-[0-9A-Za-z/-]*", text):
            raise ParameterError(
                f"GPUs are {gpus!r}; give 'auto', 'none', or numbers or UUIDs as nvidia-smi -L "
                "lists them, such as 0,1"
            )
    if len(set(asked)) < len(asked):
        raise ParameterError(f"GPUs are {gpus!r}; each may be named once")
    return asked or "none"


def choose_gpus(
    gpus: GpusAsked, *, needs: Sequence[str] = ("cupy",), one_process: bool = False
) -> GpuChoice:
    """Choose GPUs of this machine.

    Parameters
    ----------
    gpus : str, int, sequence or None
        As :func:`parse_gpus` takes it.
    needs : sequence of str
        Python packages without which no GPU can be used.
    one_process : bool
        Whether one process is to use all of them, and not a worker each.

    Returns
    -------
    GpuChoice
        All GPUs, those that were asked for in that order, or none.

    Raises
    ------
    ParameterError
        If ``gpus`` is nothing that can be meant, or one process cannot use those GPUs.
    ClusterError
        If GPUs were asked for by number or UUID and are not there, or a package is missing.
    """
    asked = parse_gpus(gpus)
    if asked == "none":
        return GpuChoice([])
    found, why = find_gpus()
    if found and not why:
        missing = [name for name in needs if not _is_installed(name)]
        if missing:
            why = f"no {' and no '.join(missing)} in this Python; {INSTALL}"
    shown = _shown_by_cuda(found) if one_process else found
    if asked == "auto":
        return GpuChoice([], why) if why else GpuChoice(shown)
    one = len(asked) == 1
    wanted = f"GPU{'' if one else 's'} {', '.join(asked)} {'was' if one else 'were'} asked for"
    if why:
        raise ClusterError(f"{wanted}, and none can be used: {why}")
    chosen: list[Gpu] = []
    for each in asked:
        same = [g for g in found if each == g.index or ("-" in each and g.uuid.startswith(each))]
        if len(same) != 1:
            what = "is more than one" if same else "is not there"
            raise ClusterError(
                f"{wanted}, and {each} {what}; available: {', '.join(map(str, found))}"
            )
        if same[0] in chosen:
            raise ParameterError(f"GPU {same[0]} was named twice")
        if same[0] not in shown:
            raise ParameterError(
                f"GPU {same[0]} cannot be used without workers: where a GPU is split (MIG), CUDA "
                f"shows a process nothing but one instance, which is {shown[0]}; give --workers 1 "
                "or more, so that each GPU has a process of its own"
            )
        chosen += same
    return GpuChoice(chosen, asked=True)


def _shown_by_cuda(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those of the GPUs that CUDA shows to one process: of split ones the first instance.

    NVIDIA's Multi-Instance GPU user guide, "CUDA Device Enumeration": CUDA enumerates a single
    instance, the first one, and then no GPU that is whole.
    """
    return [gpu for gpu in gpus if gpu.uuid.startswith("MIG-")][:1] or list(gpus)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # of what stands before the dot
        return False


def find_gpus() -> tuple[list[Gpu], str]:
    """Find the GPUs that processes started here may use.

    Returns
    -------
    gpus : list of Gpu
        In the order of their numbers, or of ``CUDA_VISIBLE_DEVICES`` if that is set.
    why : str
        Why there are none, "" if there are.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip(" ,"):
        return [], "CUDA_VISIBLE_DEVICES is set to nothing, which hides all GPUs"
    gpus, why = _from_nvml()
    if why:
        return [], why
    if visible is None:
        return gpus, "" if gpus else "the NVIDIA driver knows of no GPU"
    shown: list[Gpu] = []
    for each in (part.strip() for part in visible.split(",")):
        # what CUDA does: the first name that is not there ends the list
        same = [g for g in gpus if each and (g.index == each or g.uuid.startswith(each))]
        if not same and each.isdigit():  # a whole GPU that is split stands for its first instance
            same = [g for g in gpus if g.index.split(":")[0] == each][:1]
        if len(same) != 1:
            break
        shown += same
    return shown, "" if shown else f"CUDA_VISIBLE_DEVICES={visible} names no GPU that is there"


def _from_nvml() -> tuple[list[Gpu], str]:
    """All GPUs, through NVML's Python package, else as ``nvidia-smi`` lists them."""
    try:
        import pynvml
    except ImportError:
        return _from_smi()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"no NVIDIA driver answers ({error})"
    try:
        gpus: list[Gpu] = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            name = _decoded(pynvml.nvmlDeviceGetName(handle))
            instances = _instances(pynvml, handle)
            if instances is None:
                gpus.append(Gpu(str(number), _decoded(pynvml.nvmlDeviceGetUUID(handle)), name))
            else:
                gpus += [Gpu(f"{number}:{i}", uuid, f"{name} MIG") for i, uuid in instances]
        return gpus, ""
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver does not tell its GPUs ({error})"
    finally:
        pynvml.nvmlShutdown()


def _instances(pynvml: Any, handle: Any) -> list[tuple[int, str]] | None:
    """Return the instances of a split GPU, None if it is not split."""
    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:  # it cannot be split
        return None
    instances = []
    for number in range(count):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError:  # there may be fewer than the most
            continue
        instances.append((number, _decoded(pynvml.nvmlDeviceGetUUID(instance))))
    return instances


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def _from_smi() -> tuple[list[Gpu], str]:
    """All GPUs as ``nvidia-smi -L`` lists them."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=SMI_SECONDS, check=False
        )
    except FileNotFoundError:
        return [], "there is no NVIDIA driver (no nvidia-smi)"
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer ({error})"
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        return [], f"no NVIDIA driver answers ({said[0] if said else 'nvidia-smi failed'})"
    return parse_smi(done.stdout), ""


def parse_smi(text: str) -> list[Gpu]:
    """Read what ``nvidia-smi -L`` prints.

    Examples
    --------
    >>> parse_smi("GPU 0: NVIDIA H200 (UUID: GPU-84fd49f2-48ad)")
    [Gpu(index='0', uuid='GPU-84fd49f2-48ad', name='NVIDIA H200')]
    """
    gpus: list[Gpu] = []
    for line in text.splitlines():
        whole = re.match(r"GPU (\d+): (.*?) \(UUID: (GPU-[^)]+)\)", line)
        part = re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", line)
        if whole:
            number, name = whole[1], whole[2]
            gpus.append(Gpu(number, whole[3], name))
        elif part and gpus:
            if gpus[-1].index == number:  # the whole cannot be used beside its instances
                gpus.pop()
            gpus.append(Gpu(f"{number}:{part[2]}", part[3], f"{name} MIG {part[1]}"))
    return gpus


def bare_uuid(uuid: str) -> str:
    """Return a UUID without the ``GPU-`` or ``MIG-`` that the driver puts before it.

    Examples
    --------
    >>> bare_uuid("GPU-84fd49f2-48ad"), bare_uuid("84fd49f2-48ad")
    ('84fd49f2-48ad', '84fd49f2-48ad')
    """
    return re.sub("^(GPU|MIG)-", "", uuid)


def uuid_text(raw: bytes) -> str:
    """Return the 16 bytes of a UUID as the driver writes them.

    Examples
    --------
    >>> uuid_text(bytes(range(16)))
    '00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
