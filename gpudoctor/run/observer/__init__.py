"""The observer: what runs inside the user's own ranks under `gpudoctor run`, and never otherwise.

Standard library only, any Python from 3.8 on, torch from 2.4 on. Within the package imports are relative, since a
rank loads it from its folder, under another name: its Python may have no gpudoctor, or another one.

`entry/` is put on PYTHONPATH; `start` waits for torch; `rank_process` then patches what `torch_hooks` needs; `phases`
knows what the main thread does now; `record_file` keeps it where gpudoctor reads it, even after a SIGKILL.
"""
