"""What stands between the texts that people paste: prompts with commands, fences, rulers, headings, and gaps."""

from __future__ import annotations

import re

# a line that begins with one of these names is a command, also after root's prompt ("# dmesg") or without a prompt;
# nvidia-smi with a lower-case word behind it only if that is one of its subcommands
_PROGRAMS = (
    r"(?:sudo +(?:-\w+ +)*)?(?:[\w./~-]*/)?(?:nvidia-smi(?! +(?!\w*mon\b|topo|nvlink|c2c|mig|vgpu|clocks|drain)[a-z])"
    r"|nvidia-(?:ctk|docker|cuda-mps-control)|nvidia-(?!smi\b)[a-z-]+(?:\.sh)?(?= *$| +-)"
    r"|dmesg|journalctl|lspci|lsmod|modinfo|modprobe|insmod|rmmod"
    r"|dkms|systemctl|uname|cat|grep|egrep|zgrep|awk|sed|ls|lsb_release|mokutil|df|free|ulimit|docker|podman|kubectl"
    r"|crictl|nvidia-container-cli|sinfo|scontrol|srun|ibstat|ibstatus|ibv_devinfo|ip|ethtool|mst|mlxlink|numactl|env"
    r"|export|python3?|dcgmi|nvcc|gpudoctor|ssh|exit|top|htop|ps|apt|apt-get|yum|dnf|tail|head|watch|echo|time|which"
    r"|update-initramfs|reboot|lsof|fuser|nsys|torchrun|nvtop|for|while|sh|bash|cd|curl|wget|pip3?|conda|ldconfig)"
)
PROMPT = re.compile(
    # [user@host dir]$ cmd    user@host:~/dir$ cmd    (venv) root@host[/]# cmd    host:~ # cmd    $cmd (attached)
    r"(?:\([\w.+-]{1,60}\) ?){0,3}"
    r"(?:\[[\w.@: ~/+-]{1,120}\] ?[$#%>]|[\w.-]{1,64}@[\w.-]{1,120}[\w.@:~/\[\]() +-]{0,200}?[$#%>❯»]"
    r"|[\w.-]{1,64}:[~/][\w./~-]{0,120} ?[$#>]|(?:ba)?sh-\d\.\d+[$#]|PS [A-Z]:\\[^>]{0,200}>|[A-Z]:\\[^>]{0,200}>"
    r"|[~/][\w./~-]{0,120} ?[$#%❯>]|[➜❯ᐅλ][^$#]{0,60}|[$%]|>>>)"
    r"(?: (?P<command>.{0,2000})|(?P<attached>[a-z./][^ ].{0,2000})?)$"
)
# of a prompt; not the id of a container
HOST = re.compile(r"[(\[]?[\w.-]{1,64}@(?!localhost\b|[0-9a-f]{12}\b)(\w[\w-]{0,62})[\w.-]{0,120}[\s:~\[\]$#]")
# its output is of another machine or a container, or of nodes that a scheduler knows: the prompt is of none of them
ELSEWHERE = re.compile(
    r"\b(?:rsh|[pcm]?ssh|mosh|telnet|parallel-ssh|x?dsh|pdsh|clush|srun|salloc|mpirun|mpiexec|ansible(?:-\w+)?|salt|kubectl|oc|scontrol|sinfo"
    r"|(?:docker|podman|nerdctl|crictl|lxc|incus)(?: compose)? exec|ipmitool|nsenter)\s"
)
# not "dmesg shows Xid 79", "while training GPU 3 fell off the bus": there somebody tells of it; that is looked for
_NOT_TOLD = (
    r"(?! +(?:says|said|shows|showed|reports|reported|tells|sees|lists|gives|prints|hangs|hung|fails|failed|does|did"
    r"|is|was|has|had)\b)"
    r"(?:(?<=echo)|(?!(?: [^|&;<>\"'/]*?)? (?:is|was|are|were|has|had|have|cannot|crashe[ds]|died|dies|fell)\b))"
)
ROOT = re.compile(rf"(?:#|\+{{1,3}}|>|PS>) ?(?P<command>{_PROGRAMS}\b{_NOT_TOLD}.{{0,2000}})$")
BARE = re.compile(
    rf"(?!.* level=\S{{1,10}} msg=)(?P<command>(?:sudo +)?{_PROGRAMS}{_NOT_TOLD}(?: +[-|/\w.*'\"=,:$~]+){{0,40}} *)$"
)
# no option, quote, path or pipe: it may be a sentence about the program ("dkms install failed")
PLAIN_WORDS = re.compile(
    r"(?!(?:sudo +)?(?:[ez]?grep|awk|sed|cat|echo|watch|ls|which)\b)\w[\w.-]*(?: +[\w(#][\w.,:)%#-]*)+ *$"
)
FENCE = re.compile(r"[ \t]{0,8}(?:`{3,}|~{3,})[\w +.-]{0,40}$|[ \t]{0,8}</?(?:details|summary|pre|code|br)\b.{0,200}>$")
MARKUP = re.compile(r"\s{0,80}<(?:\?xml|!DOCTYPE|nvidia_smi_log)")  # a page's source would have "&lt;"
GREP_GAP = "--"  # between the matches of grep -A: the tool's text continues after it
# also matches the border of a table that is not open yet
RULER = re.compile(r"[ \t]*(?:[-_=*#~.]{3,}|(?:[-*_] ){2,}[-*_]|[─━═]{3,}|\+[-=+]{10,})[ \t]*$")
# that something is left out, or that the program was ended before it had printed all
_LINES = r"(?:more |other |remaining |further )?(?:lines?|rows?|GPUs?|entries|characters|bytes)"
_WHAT = rf"(?:the )?(?:output|rest|remainder|list|text|log|(?:\d+ |some |the )?{_LINES})"
_GONE = r"(?:(?:is|was|are|were) )?(?:omitted|truncated|elided|snipped|removed|left out|cut|skipped|not shown)"
LEFT_OUT = re.compile(
    r"[^\w.]{0,40}(?:\.{3,5}|…|⋮)[^\w.]{0,40}$"
    rf"|(?i:\W{{0,40}}(?:{_WHAT} {_GONE}(?: for \w+)?|(?!0\b)\d+ (?:more |other |further ){_LINES}"
    r"|same (?:for|on|as) .{0,20}(?:other|remaining|rest).{0,10}(?:GPU|card)s?)\W{0,40}$)"
    # in brackets, or between rules
    rf"|(?i:[ \t]{{0,40}}(?:[\[(<{{]|[-*#=~.]{{2}})\W{{0,40}}(?:snip(?:ped)?|cut here|more"
    rf"|{_GONE}(?: \w+){{0,4}})\W{{0,40}}$)"
    # ended by a signal, or by who reads
    r"|\^C$|(?:Killed|Terminated)\W?$|timeout: the monitored command .{1,40}$|.{0,60}\bBroken pipe\W?$"
)
# a heading between two runs of a ruler: "==> dmesg.txt <==" of head and tail, "===== nvidia-smi =====", "## dmesg"
HEADING = re.compile(
    r"[ \t]*(?:==> (?P<file>\S.{0,200}) <==|(?:[=*#_-]{3,}|#{1,6}) *(?P<title>\S.{0,80}?):? *(?:[=*#_-]{3,}|#{0,6}))$"
)
