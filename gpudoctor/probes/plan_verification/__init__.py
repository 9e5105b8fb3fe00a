"""The ranks of `gpudoctor plan --try`."""
