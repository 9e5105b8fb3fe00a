"""A driver library made of facts: `gpudoctor fake-driver` runs any NVML program against a node that is not here."""
