"""env.*: environment variables and software that decide what a training sees."""

# level and title of each check in the module of its name: a run of a lower level does not import it
CHECKS = {
    "env.torch": ("standard", "torch fits the driver and sees every GPU it may use"),
    "env.frameworks": ("full", "torch, TensorFlow and JAX see the GPUs that the driver shows"),
}
