"""The ASGI application around a ``Plane``: every route checks its caller, every answer has one form.

A route that does not say who may call it stops the program from starting, and so does one that is open without
standing in ``OPEN_PATHS``: nothing is reachable by an oversight. What web pages make browsers send is refused before
any route (see ``guard``).
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpulayer.errors import BadRequest, GpulayerError, InternalError, NotFound
from gpulayer.ids import new_id
from gpulayer.server.guard import Guard
from gpulayer.server.plane import Plane
from gpulayer.server.routes import ROUTES
from gpulayer.server.tokens import TokenKind
from gpulayer.server.web import Call, Route, error_response

__all__ = ["OPEN_PATHS", "create_app"]

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/v1/workers/{id}/sessions"})

_log = logging.getLogger(__name__)


def create_app(plane: Plane, *, routes: Iterable[Route] = ROUTES) -> Starlette:
    """The application. Raises ValueError for a route that does not declare its callers."""
    for route in routes:
        _check_access(route)
    app = Starlette(
        routes=[_served(plane, route) for route in routes],
        middleware=[Middleware(Guard, hosts=lambda: plane.settings.allowed_hosts)],
        exception_handlers={HTTPException: _unknown, Exception: _fault},
    )
    app.router.redirect_slashes = False
    return app


def _served(plane: Plane, route: Route) -> routing.Route:
    served = routing.Route(route.path, _endpoint(plane, route), name=route.path)
    served.methods = {route.method}  # given to the constructor, GET would bring HEAD along, which nobody declared
    return served


def _check_access(route: Route) -> None:
    where = f"{route.method} {route.path}"
    if route.access is None or not (route.access.kinds or route.access.is_open):
        raise ValueError(f"{where} does not say whose tokens it takes")
    if route.access.is_open and route.path not in OPEN_PATHS:
        raise ValueError(f"{where} is open to anybody, and is not meant to be")


def _endpoint(plane: Plane, route: Route) -> Callable[[Request], Awaitable[Response]]:
    access = route.access
    if access is None:
        raise ValueError("checked before")

    async def endpoint(request: Request) -> Response:
        try:
            caller = None
            if not access.is_open:
                caller = await plane.auth.authenticate(request.headers.get("authorization"))
            call = Call(plane, request, caller)
            if caller is not None:
                call.recognise(caller.party, is_worker=caller.kind is TokenKind.WORKER)
                access.check(caller)
            if caller is None or caller.kind is TokenKind.WORKER:
                return await route.handler(call)
            with plane.admission.admitted(route.demand, caller.party) as call.held:
                if caller.kind is not TokenKind.CLIENT:
                    return await route.handler(call)
                with _present(plane):
                    return _Presence(plane, await route.handler(call))
        except GpulayerError as error:
            if isinstance(error, InternalError):
                _log.error("%s %s: %s", request.method, route.path, error.message)
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            return _internal(request, error)

    return endpoint


@contextmanager
def _present(plane: Plane) -> Iterator[None]:
    """A client is here: an embedded plane does not end meanwhile."""
    plane.clients_now += 1
    try:
        yield
    finally:
        plane.clients_now -= 1
        plane.last_client_ms = plane.clock.monotonic_ms()


class _Presence(Response):
    """A client's answer, which may take its time to send: a followed log, a large blob."""

    def __init__(self, plane: Plane, answer: Response) -> None:
        self._plane = plane
        self._answer = answer
        self.status_code = answer.status_code
        self.background = None
        self.body = b""
        self.raw_headers = answer.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with _present(self._plane):
            await self._answer(scope, receive, send)


async def _unknown(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _internal(request, error)
    if error.status_code == 404:
        return error_response(NotFound(f"no route {request.url.path[:200]!r}", hint="/openapi.json lists the routes"))
    if error.status_code == 405:
        said = request.method
        method = said if said.isalpha() and len(said) <= 10 else "that"  # what is longer may be a token in its place
        answer = error_response(BadRequest(f"{method} is not a method of {request.url.path[:200]}"), 405)
        answer.headers.update(error.headers or {})
        return answer
    return error_response(BadRequest(str(error.detail)), error.status_code)


async def _fault(request: Request, error: Exception) -> Response:
    return _internal(request, error)


def _internal(request: Request, error: Exception) -> Response:
    reference = new_id()[:8]
    _log.error("fault %s in %s %s", reference, request.method, request.url.path, exc_info=error)
    return error_response(
        InternalError(
            f"the control plane met a fault of its own (reference {reference})",
            hint="its log, plane.log in the state folder, has the details",
        )
    )
