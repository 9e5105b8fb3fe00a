"""gpu.power-limit: is a GPU capped below its default power?"""

from __future__ import annotations

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu, same_model
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.nvlink.link_state import model_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.peers import majority

_SHARE_PCT = Limit(1, "%", "rounding of the limit by the driver", name="share_pct")


@check(
    "gpu.power-limit",
    title="No GPU is capped below its default power",
    impact="slow-gpu",
    limits=(_SHARE_PCT,),
    explains=("gpu.identical", "gpu.clocks", "gpu.throttle", "train.balance", "compute.gemm"),
)
@each_gpu
def power_limit(case: Case, gpu: Gpu) -> Finding:
    """Compare the enforced limit with the GPU's default and with its peers; a cap is never more than a warning."""
    limit_w = gpu.power.limit_w
    if isinstance(limit_w, Missing):
        return unread(of_gpu(gpu), "enforced power limit", limit_w)
    default_w, source = known(gpu.power.default_limit_w), "the GPU's own default"
    model = model_of(case, gpu)
    if default_w is None and model is not None and "power_limit_w" not in model.uncertain:
        default_w, source = model.power_limit_w, f"profile {case.profile.name}"
    peers_w = majority(known(g.power.limit_w) for g in same_model(case, gpu))
    slack = 1 - case.limit(_SHARE_PCT, gpu) / 100
    evidence = Evidence("power limit, enforced", f"{limit_w:g} W")
    for wanted_w, basis in ((default_w, source), (peers_w, "majority of the peers")):
        if wanted_w and limit_w < wanted_w * slack:
            lost = (1 - limit_w / wanted_w) * 100
            return warn(
                of_gpu(gpu),
                Found(f"capped at {limit_w:g} W, {lost:.0f} % below {basis}", limit_w, "W"),
                Expected(f"{wanted_w:g} W", ">=", wanted_w, "W", basis),
                evidence,
                likely="a power cap set by an operator or a power manager; it slows this GPU under load",
                advice=[
                    Advice("Not meant? Set the limit back.", f"nvidia-smi -i {gpu.bus_id} -pl {wanted_w:g}"),
                    Advice("Meant? Give all GPUs of the node the same cap, so that none waits for another."),
                ],
            )
    if default_w is None and peers_w is None:
        return skip(of_gpu(gpu), f"capped at {limit_w:g} W; neither its default nor peers to compare with")
    text = f"{limit_w:g} W, its default" if default_w else f"{limit_w:g} W, as its peers"
    return ok(of_gpu(gpu), Found(text, limit_w, "W"), None, evidence)
