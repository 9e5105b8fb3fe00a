"""The XML of `nvidia-smi -q -x`, schema v10 to v13 (drivers 390 to 595)."""

from __future__ import annotations

import re
from xml.parsers.expat import ErrorString, errors

from msgspec.structs import replace

from gpudoctor.facts.captures import SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, is_selected, smi_dump
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT, GpuDump, GpuDumps
from gpudoctor.facts.captures.nvidia_smi.values import normal_name
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from defusedxml import ElementTree, common

_ROOT = "nvidia_smi_log"
_BEGIN = re.compile(r"\s*<(?:\?xml|!DOCTYPE nvidia_smi_log|nvidia_smi_log[\s>])")
_ROOT_BEGIN = re.compile(r"\s*<nvidia_smi_log[\s>]")
_DEEPEST = 32  # nvidia-smi nests 7 levels deep; a hostile file may have a million


def parse_smi_xml(text: str, *, selected: bool = False) -> SmiDump:
    """Read the dump. Raise SourceError, with line and column, if it is broken or hostile, or contains no GPU.

    nvidia-smi's DOCTYPE line is allowed; entity declarations are refused and no DTD is ever fetched. Text before the
    XML (warnings of nvidia-smi) is searched for handle errors. If the dump is cut off, what is missing from its last
    GPU is Missing (failed). `selected`: run with -i.
    """
    start = min(
        (at for at in (text.find("<?xml"), text.find("<!DOCTYPE"), text.find("<" + _ROOT)) if at >= 0), default=0
    )
    end = text.rfind(f"</{_ROOT}>")
    end = end + len(_ROOT) + 3 if end >= 0 else len(text)
    sections = _Sections()
    parser = ElementTree.DefusedXMLParser(target=sections, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    cut = ""
    try:
        parser.feed(text[start:end])
        parser.close()
    except common.DefusedXmlException as error:
        raise SourceError(f"XML with entities or external parts is refused ({type(error).__name__})") from None
    except ElementTree.ParseError as error:
        line, column = error.position
        line += text.count("\n", 0, start)
        unfinished = (errors.XML_ERROR_NO_ELEMENTS, errors.XML_ERROR_UNCLOSED_TOKEN)
        if ErrorString(error.code) in (*unfinished, errors.XML_ERROR_UNCLOSED_CDATA_SECTION):
            cut = f"cut off at line {line}: the XML ends inside <{sections.place}>"
        else:
            raise SourceError(f"broken XML at line {line}, column {column}: {str(error).partition(':')[0]}") from None
    if cut and not sections.gpus:
        raise SourceError(cut)
    if not sections.gpus and "attached_gpus" not in sections.top:
        raise SourceError(f"<{_ROOT}> holds no GPU")
    gpus = list(sections.gpus.values())
    if cut and sections.in_gpu:
        gpus[-1].cut = CUT
    dump = smi_dump(sections.top, gpus, text[:start] + text[end:], selected=selected)
    return replace(dump, notes=(*dump.notes, *filter(None, [cut])), complete=dump.complete and not cut)


class _Sections:
    """An XML target that builds no tree: values are stored by path in the open GPU."""

    def __init__(self) -> None:
        self.top: dict[str, str] = {}
        self.gpus = GpuDumps()
        self._gpu = GpuDump()
        self._path: list[str] = []  # below the root, or below <gpu>
        self._depth = 0
        self.in_gpu = False  # its section has not ended
        self._text: list[str] = []

    @property
    def place(self) -> str:
        return self._path[-1][:60] if self._path else "gpu" if self.in_gpu else _ROOT

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._text.clear()
        if self._depth > _DEEPEST:
            raise SourceError(f"XML nested deeper than {_DEEPEST} levels")
        if self._depth == 1:
            if tag != _ROOT:
                raise SourceError(f"XML of something else: <{tag[:40]}>, not <{_ROOT}>")
        elif self._depth == 2 and tag == "gpu":
            self._gpu = self.gpus.at(len(self.gpus), attributes.get("id", ""))
            self._gpu.lists_mig = self.in_gpu = True
        else:
            self._path.append(normal_name(tag))

    def data(self, text: str) -> None:
        self._text.append(text)

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._depth == 1 and self.in_gpu and not self._path:
            self.in_gpu = False
        elif self._path:
            self._keep(clipped("".join(self._text).strip()), tag)
            self._path.pop()
        self._text.clear()

    def _keep(self, text: str, tag: str) -> None:
        # an empty list of processes is a value; any other empty element is not
        if self.in_gpu and (text or tag == "processes"):
            self._gpu.keep(self._path, text or "None")
        elif not self.in_gpu and len(self._path) == 1 and text:
            self.top[self._path[0]] = text

    def close(self) -> None:
        return None


@text_reader(
    "nvidia-smi -q -x",
    _BEGIN.match,
    _BEGIN.match,
    restarts=_ROOT_BEGIN.match,
    until=lambda line: f"</{_ROOT}>" in line,
)
def read_query_xml(block: Block) -> Part:
    dump = parse_smi_xml(block.text, selected=is_selected(block.command))
    return Part(smi=(dump,), reported=dump.reported)
