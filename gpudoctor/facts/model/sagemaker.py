"""The hosts of a SageMaker training job, as its variable SM_HOSTS lists them."""

import msgspec


def sagemaker_hosts(text: str | None) -> list[str]:
    """The distinct names in the JSON list, algo-2 before algo-10; empty if it is unset or not a list of strings.

    They are sorted because the order of the list may differ between hosts.
    Source: SageMaker Training Toolkit, ENVIRONMENT_VARIABLES.md.

    >>> sagemaker_hosts('["algo-10","algo-2"]')
    ['algo-2', 'algo-10']
    """
    try:
        hosts = set(msgspec.json.decode(text or "[]", type=list[str]))
    except msgspec.MsgspecError:
        return []
    return sorted(hosts, key=lambda host: (len(host), host))
