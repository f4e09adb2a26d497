"""The values of JSON Schema's ``format`` that are compiled, each as a pattern that any validator accepts."""

_YEAR = "[12][0-9]{3}"
_DAY_OF_MONTH = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"{_YEAR}-{_DAY_OF_MONTH}"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](\\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"

FORMATS = {
    "date": f"^{_DATE}$",  # without the 29th of February
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "email": f"^[a-z0-9]+([._+-][a-z0-9]+)*@({_LABEL}\\.)+[a-z]{{2,10}}$",
    "ipv4": f"^{_BYTE}(\\.{_BYTE}){{3}}$",
}
