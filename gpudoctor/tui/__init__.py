"""The live view: the same facts and verdicts as `gpudoctor check`, while a job runs."""
