"""Examples of response bodies for the OpenAPI document, made from their schemas.

A view's own example, with a story, comes first; the others show the shape. Values are taken by the
name of the property, then by its type, so that one thing looks the same in every example.
"""

from typing import Any

_JOB = "flights-1a2b3c4d"
_UUID = "0b8d3a1e-6d5c-4c53-9f0e-6f6c8f0f9a11"
_AT = "2026-03-01T12:00:00Z"
_API = "https://weir.example/api/v1"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

# By the name of the property, where a value by its type would say nothing.
VALUES: dict[str, Any] = {
    "action": "job.cancel",
    "address": "192.0.2.7",
    "advice": ["Give the job more slots."],
    "attempt": 2,
    "because": ["Busy shares of Enrich step: 97 %."],
    "cause": "",
    "chain": "enrich",
    "created_by": "mara",
    "digest": _DIGEST,
    "duration_ms": 412,
    "error": "",
    "file_name": "orders.py",
    "headline": "Checkpoint 1,042 took 412 ms.",
    "host": "node-1",
    "job": _JOB,
    "job_name": "flights",
    "job_url": f"{_API}/jobs/{_JOB}",
    "labels": {"team": "tariffs"},
    "location": "/checkpoints/flights-1a2b3c4d/savepoints/before-the-new-tariff",
    "name": "flights",
    "number": 1042,
    "operator": "enrich",
    "parallelism": 2,
    "pid": 4701,
    "request_id": "3f2a7c1e5b9d4f60",
    "size": 2_048,
    "source": "flights",
    "storage": "/checkpoints",
    "target": "enrich",
    "uid": "enrich",
    "upload": None,
    "uploaded_by": "mara",
    "username": "mara",
    "requested_by": "mara",
}
# By component, where the property's name means another thing there.
OF_COMPONENT: dict[str, dict[str, Any]] = {
    "AuditEntry": {"target": f"job/{_JOB}"},
    "Job": {"id": _JOB, "url": f"{_API}/jobs/{_JOB}"},
    "JobDetail": {"id": _JOB, "url": f"{_API}/jobs/{_JOB}"},
    "Pipeline": {"kind": "module", "target": "weir.examples.flights"},
}
_DEPTH_MAX = 8


def add_examples(document: dict[str, Any]) -> None:
    """Give each response of success an example that has none."""
    schemas = document["components"]["schemas"]
    for path in document["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                for content in response.get("content", {}).values():
                    if str(status).startswith("2") and not content.keys() & {"example", "examples"}:
                        content["example"] = example(content["schema"], schemas)


def example(schema: dict[str, Any], schemas: dict[str, Any], component: str = "") -> Any:
    """A value that a schema allows."""
    return _example(schema, schemas, component, "", 0)


def _example(
    schema: dict[str, Any], schemas: dict[str, Any], component: str, name: str, depth: int
) -> Any:
    if (reference := schema.get("$ref")) is not None:
        component = reference.rpartition("/")[2]
        return _example(schemas[component], schemas, component, name, depth)
    for several in ("allOf", "oneOf", "anyOf"):
        if several in schema:
            return _example(schema[several][0], schemas, component, name, depth)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else None)
    kinds: list[Any] = kind if isinstance(kind, list) else [kind]
    own = OF_COMPONENT.get(component, {}).get(name, VALUES.get(name))
    if own is not None and _fits(own, kinds, schema):
        return own
    match kinds[0]:
        case "object":
            properties = schema.get("properties", {})
            if depth >= _DEPTH_MAX:
                return {}
            return {
                inner: _example(shape, schemas, component, inner, depth + 1)
                for inner, shape in properties.items()
            }
        case "array":
            count = max(1, schema.get("minItems", 1))
            return [_example(schema["items"], schemas, component, "", depth + 1)] * count
        case "boolean":
            return False
        case "integer":
            return int(max(1, schema.get("minimum", 1)))
        case "number":
            return max(0.5, schema.get("minimum", 0.5))
        case "string":
            return _text(schema, name)
        case _:
            return None


def _fits(value: Any, kinds: list[Any], schema: dict[str, Any]) -> bool:
    if isinstance(value, str):
        return "string" in kinds and schema.get("format") in (None, "uri")
    types = {list: "array", dict: "object", int: "integer"}
    return types[type(value)] in kinds or (type(value) is int and "number" in kinds)


def _text(schema: dict[str, Any], name: str) -> str:
    match schema.get("format"):
        case "date-time":
            return _AT
        case "uuid":
            return _UUID
        case "uri":
            return f"{_API}/{name or 'jobs'}"
        case "email":
            return "mara@weir.example"
        case "binary":
            return "print('orders')\n"
    return name or "text"
