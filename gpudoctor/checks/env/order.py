"""The env.* checks, in the order a report shows them."""

from __future__ import annotations

from gpudoctor.checks import cuda_visibility, framework_sight, nccl_settings, torch_build  # noqa: F401  register on import
