"""/openapi.json, made from the routes and the wire schemas when somebody asks for it."""

import re
from collections.abc import Sequence
from typing import Any

from gpulayer import __version__
from gpulayer.server.tokens import TokenKind
from gpulayer.server.web import Access, Route, adapter
from gpulayer.wire.errors import ErrorEnvelope

__all__ = ["describe"]

Document = dict[str, Any]  # Any: JSON

_PARAMETER = re.compile(r"\{(\w+)\}")


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
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(route.path)
        ]
        + [
            {"name": query.name, "in": "query", "description": query.text, "schema": {"type": query.kind}}
            for query in route.query
        ],
        "responses": {
            str(route.status): _answer(route, schemas),
            "default": {"description": "An error", "content": _json(ErrorEnvelope, schemas)},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(route.body, schemas)}
    elif route.raw:
        operation["requestBody"] = {"required": True, "content": {route.raw: {"schema": {"type": "string"}}}}
    return operation


def _answer(route: Route, schemas: Document) -> Document:
    if route.raw_reply:
        return {"description": "Bytes", "content": {route.raw_reply: {"schema": {"type": "string"}}}}
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
