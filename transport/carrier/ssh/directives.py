"""The options of ssh_config: the applied ones, those that must not be left out, those without a meaning here."""

from __future__ import annotations

RAW = {"proxycommand", "remotecommand", "localcommand", "knownhostscommand"}  # the rest of the line as it is
ADDED = {"identityfile", "certificatefile", "sendenv"}  # each line adds to it

APPLIED = {
    *("addressfamily", "batchmode", "bindaddress", "canonicaldomains", "canonicalizefallbacklocal"),
    *("canonicalizehostname", "canonicalizemaxdots", "canonicalizepermittedcnames", "casignaturealgorithms"),
    *("certificatefile", "ciphers", "connecttimeout", "globalknownhostsfile", "hashknownhosts", "host"),
    *("hostkeyalgorithms", "hostkeyalias", "hostname", "identitiesonly", "identityagent", "identityfile"),
    *(
        "ignoreunknown",
        "kexalgorithms",
        "macs",
        "port",
        "preferredauthentications",
        "proxycommand",
        "proxyjump",
    ),
    *(
        "pubkeyauthentication",
        "revokedhostkeys",
        "sendenv",
        "setenv",
        "stricthostkeychecking",
        "tag",
        "user",
        "userknownhostsfile",
    ),
}

# They say how a terminal, a forwarding or a log looks: a connection that has none of them loses nothing.
WITHOUT_MEANING = {
    *("bindinterface", "challengeresponseauthentication", "checkhostip", "clearallforwardings"),
    *("compression", "connectionattempts", "controlmaster", "controlpath", "controlpersist"),
    *("enableescapecommandline", "enablesshkeysign", "escapechar", "exitonforwardfailure"),
    *("fingerprinthash", "forkafterauthentication", "forwardx11", "forwardx11timeout"),
    *("forwardx11trusted", "gatewayports", "gssapiauthentication", "gssapidelegatecredentials"),
    *("gssapikexalgorithms", "gssapikeyexchange", "hostbasedauthentication", "ipqos"),
    *("kbdinteractiveauthentication", "kbdinteractivedevices", "knownhostscommand", "loglevel"),
    *("logverbose", "nohostauthenticationforlocalhost", "numberofpasswordprompts"),
    *("obscurekeystroketiming", "passwordauthentication", "proxyusefdpass", "rekeylimit"),
    *("serveralivecountmax", "serveraliveinterval", "stdinnull", "streamlocalbindmask"),
    *("streamlocalbindunlink", "syslogfacility", "tcpkeepalive", "updatehostkeys", "visualhostkey"),
    *("xauthlocation"),
}

# Words that ask for the default
NOTHING = ("no", "false", "none", "")

# Without them the connection would go another way, or to a host that ssh would have refused.
REFUSED = {
    "bindinterface": "it would leave by another interface",
    "knownhostscommand": "its host keys would not be known",
    "proxyusefdpass": "its ProxyCommand passes no bytes",
}

# Other ways to log in. Where they are set and no key is accepted, the error names them. GSSAPIAuthentication is not one
# of them: Debian sets it for all hosts.
OTHER_LOGINS = ("HostbasedAuthentication", "PKCS11Provider", "SecurityKeyProvider")


def refuse(key: str, name: str, value: str, where: str) -> None:
    """Raise ValueError for an option without which the connection would mean another thing."""
    if key in REFUSED and value.lower() not in NOTHING:
        cure = 'transport = "openssh" uses ssh itself'
        raise ValueError(f"{where}: {name} is not supported here ({REFUSED[key]}); {cure}")


def passed_over(key: str, value: str) -> bool:
    """Return whether an option was meant to change something, and does not."""
    if key in APPLIED or key in REFUSED:
        return False
    return key not in WITHOUT_MEANING and value.lower() not in NOTHING
