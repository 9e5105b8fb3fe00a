"""`gpudoctor run`: the user's own training, watched and judged.

`command` leads: it starts the command in our place (`process/foreground`), with `settings` that make failures readable
and the `observer` in its ranks. `watching` reads what the observer leaves (`record_reader`, `step_series`) and the
kernel's own counters (`rank_process`). `findings/` judges; `report`, `text` and `html` say it.
"""
