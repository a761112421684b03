"""/openapi.json, made from the routes and the wire schemas when somebody asks for it."""

import re
from collections.abc import Sequence
from typing import Any, Final

from gpulayer import __version__
from gpulayer.server.tokens import TokenKind
from gpulayer.server.web import Access, Query, Route, adapter
from gpulayer.wire.errors import ErrorEnvelope

__all__ = ["describe"]

Document = dict[str, Any]  # Any: JSON

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 4096}
_IN_PATH: Final[dict[str, Document]] = {
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "epoch": {"type": "integer", "minimum": 0, "maximum": 2**62},
}
_BYTES: Final = {"type": "string", "format": "binary"}
_LONGEST: Final = 4096
_PROBLEMS: Final = {
    "4XX": "The request can't be served as it is; the error's blame and hint say what to change",
    "500": "A fault of the control plane's own",
    "503": "Nothing can be accepted now; try again after Retry-After",
    "507": "A disk of the control plane is full",
}


def describe(routes: Sequence[Route]) -> Document:
    """The OpenAPI 3.1 description of these routes."""
    schemas: Document = {}
    paths: Document = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "GPUlayer control plane", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                str(kind): {"type": "http", "scheme": "bearer", "description": f"a {kind} token"} for kind in TokenKind
            },
        },
    }


def _operation(route: Route, schemas: Document) -> Document:
    operation: Document = {
        "summary": route.summary,
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}_{route.handler.__name__}",
        "security": _security(route.access or Access()),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, _TEXT)}
            for name in _PARAMETER.findall(route.path)
        ]
        + [
            {"name": query.name, "in": "query", "description": query.text, "schema": _in_query(query)}
            for query in route.query
        ],
        "responses": {
            **{str(status): _answer(route, schemas) for status in (route.status, route.repeated) if status},
            **{status: _problem(text, schemas) for status, text in _PROBLEMS.items()},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(route.body, schemas)}
    elif route.raw:
        operation["requestBody"] = {"required": True, "content": {route.raw: {"schema": _BYTES}}}
    return operation


def _in_query(query: Query) -> Document:
    match query.kind:
        case "flag":
            return {"type": "string", "enum": ["0", "1", "true", "false"]}
        case "string" if query.choices:
            return {"type": "string", "enum": list(query.choices)}
        case "string":
            return {"type": "string", "maxLength": min(query.most, _LONGEST)}
        case kind:
            return {"type": kind, "minimum": query.least, "maximum": query.most}


def _problem(text: str, schemas: Document) -> Document:
    return {"description": text, "content": _json(ErrorEnvelope, schemas)}


def _answer(route: Route, schemas: Document) -> Document:
    if route.raw_reply:
        return {"description": "Bytes", "content": {route.raw_reply: {"schema": _BYTES}}}
    if route.reply is None:
        return {"description": "Done", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"description": "Done", "content": _json(route.reply, schemas)}


def _json(schema: type[Any], schemas: Document) -> Document:  # Any: a wire schema
    name = schema.__name__
    if name not in schemas:
        made = adapter(schema).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(made.pop("$defs", {}))
        schemas[name] = made
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _security(access: Access) -> list[Document]:
    """One of these. Listed with a client token is the role it needs, with a job's token its grant."""
    needs = {TokenKind.CLIENT: [str(access.role)], TokenKind.JOB: [str(access.grant)]}
    return [{str(kind): needs.get(kind, [])} for kind in sorted(access.kinds)]
