"""A small JSON Schema validator: checks the arguments of a call with the same schema that the guest was sent.

Laws
1. It supports the keywords in KNOWN. Another keyword in a schema is a defect, which a test finds; it is not ignored.
2. A message gives the place, the expected and the actual value, so that the guest can correct its call. The actual
   value is truncated, because the conversation already has it.
"""

from __future__ import annotations

from transport import quickjson
from transport.lean import Any

KNOWN = {
    "type", "properties", "required", "additionalProperties", "enum", "items", "minItems", "maxItems", "minLength",
    "maxLength", "minimum", "maximum", "anyOf", "pattern", "propertyNames", "description", "default",
}  # fmt: skip

LONGEST = 100  # characters of a quoted value

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def check(value: Any, schema: dict[str, Any], where: str = "") -> str:
    """Return the error in `value`, found at `where`; "" if there is none."""
    if unknown := schema.keys() - KNOWN:
        raise AssertionError(f"schema keyword not supported: {min(unknown)}")
    name = where or "the arguments"
    if "anyOf" in schema:
        faults = [check(value, option, where) for option in schema["anyOf"]]
        return "" if "" in faults else faults[_nearest(value, schema["anyOf"])]
    wanted = schema.get("type")
    if wanted and not _is(value, wanted):
        return f"{name} must be {_a(wanted)}, not {_name(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{name} must be one of {', '.join(map(repr, schema['enum']))}, not {short(repr(value))}"
    if isinstance(value, dict):
        return _check_object(value, schema, where)
    if isinstance(value, list):
        return _check_array(value, schema, name)
    if isinstance(value, str):
        return _check_text(value, schema, name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high) or value != value:
            return f"{name} must be between {low} and {high}, not {short(str(value))}"
    return ""


def fitted(value: Any, schema: dict[str, Any]) -> Any:
    """Return the value that is meant, of the type that the schema wants: 30 for "30", nothing for null."""
    if "anyOf" in schema:
        options = (fitted(value, option) for option in schema["anyOf"])
        return next((one for one in options if not check(one, schema)), value)
    wanted = schema.get("type")
    if isinstance(value, str) and wanted in ("integer", "number", "boolean", "array", "object"):
        try:
            meant = quickjson.loads(value)
        except (ValueError, RecursionError):
            return value
        value = meant if _is(meant, wanted) else value
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        rules, needed = schema.get("properties", {}), schema.get("required", ())
        others = schema.get("additionalProperties")
        other = others if isinstance(others, dict) else {}
        kept = {
            key: item for key, item in value.items() if item is not None or key in needed or key not in rules
        }
        return {key: fitted(item, rules.get(key, other)) for key, item in kept.items()}
    if isinstance(value, list):
        return [fitted(item, schema.get("items", {})) for item in value]
    return value


def short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _check_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> str:
    properties: dict[str, Any] = schema.get("properties", {})
    prefix = f"{where}." if where else ""
    for key in schema.get("required", ()):
        if key not in value:
            return f"{prefix}{key} is missing"
    for key, item in value.items():
        if "propertyNames" in schema and (
            fault := check(key, schema["propertyNames"], f"the name {prefix}{short(key)}")
        ):
            return fault
        rule = properties.get(key, schema.get("additionalProperties", {}))
        if rule is False:
            known = f"; known are {', '.join(properties)}" if properties else ""
            return f"{prefix}{short(key)} is not an argument{known}"
        if isinstance(rule, dict) and (fault := check(item, rule, f"{prefix}{short(key)}")):
            return fault
    return ""


def _check_array(value: list[Any], schema: dict[str, Any], name: str) -> str:
    if len(value) < schema.get("minItems", 0):
        return f"{name} must have at least {schema['minItems']} items"
    if len(value) > schema.get("maxItems", len(value)):
        return f"{name} must have at most {schema['maxItems']} items"
    for index, item in enumerate(value):
        if fault := check(item, schema.get("items", {}), f"{name}[{index}]"):
            return fault
    return ""


def _check_text(value: str, schema: dict[str, Any], name: str) -> str:
    if len(value) < schema.get("minLength", 0):
        return f"{name} must not be empty"
    if len(value) > schema.get("maxLength", len(value)):
        return f"{name} must have at most {schema['maxLength']} characters"
    # In JSON Schema `$` is the end; Python's `$` also matches before a final newline.
    if "pattern" in schema:
        import re  # here: no tool of an agent has a pattern on its common way

        if not re.search(schema["pattern"].replace("$", r"\Z"), value):
            return f"{name} must match {schema['pattern']}"
    return ""


def _nearest(value: Any, options: list[dict[str, Any]]) -> int:
    """Return the index of the option with the most useful error: the first of the value's type, else 0."""
    for index, option in enumerate(options):
        wanted = option.get("type")
        if wanted and _is(value, wanted):
            return index
    return 0


def _is(value: Any, wanted: str) -> bool:
    """Return whether `value` has the JSON type `wanted`; unlike in Python, true is not an integer."""
    return isinstance(value, _TYPES[wanted]) and isinstance(value, bool) <= (wanted == "boolean")


def _a(wanted: str) -> str:
    return f"an {wanted}" if wanted[0] in "aio" else f"a {wanted}"


def _name(value: Any) -> str:
    for name, kinds in (("boolean", bool), ("string", str), ("integer", int), ("number", float)):
        if isinstance(value, kinds):
            return _a(name)
    return _a("object") if isinstance(value, dict) else _a("array") if isinstance(value, list) else "null"
