"""The hosts of a SageMaker training job, as its variable SM_HOSTS lists them."""

import msgspec


def sagemaker_hosts(text: str | None) -> list[str]:
    """The names in the JSON list, each once, algo-2 before algo-10; none if it is not set or is no such list.

    Sorted, since the list may have another order on each host.

    Source: SageMaker Training Toolkit, ENVIRONMENT_VARIABLES.md.

    >>> sagemaker_hosts('["algo-10","algo-2"]')
    ['algo-2', 'algo-10']
    """
    try:
        hosts = set(msgspec.json.decode(text or "[]", type=list[str]))
    except msgspec.MsgspecError:
        return []
    return sorted(hosts, key=lambda host: (len(host), host))
