"""What programs and people say about a node in a text that was pasted, beside the facts that readers find in it."""

from typing import Literal

from gpudoctor.facts.model.missing import Fact

# who says "unread" of a part of the source that could not be read at all
OWN = "gpudoctor"

# fatal, error, warning: how loudly it is said. unread: part of a text that may tell of an error, and was not
# understood. ok: a tool's own good verdict
Loudness = Literal["fatal", "error", "warning", "unread", "ok"]


class Reported(Fact, frozen=True):
    """One statement about the node. `text` is the whole sentence, `said_by` the program or tool, "" if not known.

    `kind`, `form` and `label` are those of `gpudoctor.statements`; `effect` and `plain` what its catalogue says of the
    label, `xid` the code that is named. `gpu` is the index that the text gives, `device` a device file, or an adapter
    and its port. `only_gpu`: the GPU is the only one that the text names, in other lines. `count`: lines that say it.
    `vendor`: whose accelerators the text is about, if not NVIDIA's: "AMD", "Intel", "Huawei", "Intel Gaudi", "AWS".
    """

    text: str
    said_by: str = ""
    loudness: Loudness = "error"
    kind: str = "cause"
    form: str = "verdict"
    label: str | None = None
    effect: str | None = None
    plain: str = ""
    xid: int | None = None
    gpu: int | None = None
    bus_id: str | None = None
    uuid: str | None = None
    device: str | None = None
    only_gpu: bool = False
    vendor: str | None = None
    line: int = 0
    file: str = ""
    count: int = 1

    @property
    def names_a_gpu(self) -> bool:
        return self.gpu is not None or self.bus_id is not None or self.uuid is not None
