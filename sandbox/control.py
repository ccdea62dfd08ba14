"""The sandbox's own routes: knobs, truth, acts of somebody else, health."""

from functools import partial
from http import HTTPStatus

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandbox import acts, hook, mail, truth
from sandbox.calls import Answer
from sandbox.errors import BodyTooLarge, ClientGone
from sandbox.knobs import Knobs, Panel, describe
from sandbox.store import Store
from sandbox.wire import problem, read_body


class Control:
    """Handlers of the sandbox's own routes."""

    def __init__(self, store: Store, panel: Panel) -> None:
        self._store = store
        self._panel = panel

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self._health, methods=["GET"]),
            Route("/_control", self._show, methods=["GET"]),
            Route("/_control", self._clear, methods=["DELETE"]),
            Route("/_control/{system}", self._turn, methods=["PUT"]),
            Route("/_truth", self._truth, methods=["GET"]),
            Route("/_act", self._act, methods=["POST"]),
            Route("/mail/messages", self._mails, methods=["GET"]),
            # A channel of this name can still be posted to.
            Route("/hook/messages", self._posts, methods=["GET"]),
        ]

    async def _health(self, _request: Request) -> Response:
        # SMTP listens before HTTP does, so whoever gets this answer finds both.
        return JSONResponse({"status": "ok"})

    async def _show(self, _request: Request) -> Response:
        return JSONResponse(self._shown())

    async def _clear(self, _request: Request) -> Response:
        self._panel.clear()
        return JSONResponse(self._shown())

    async def _turn(self, request: Request) -> Response:
        system = request.path_params["system"]
        if system not in self._panel.systems:
            known = list(self._panel.systems)
            return _refused(404, f"no system {system!r}; there are {', '.join(known)}", systems=known)
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            knobs = Knobs.model_validate_json(body)
        except ValidationError as error:
            return _invalid(error)
        self._panel.put(system, knobs)
        return JSONResponse(self._panel.show(system))

    async def _truth(self, _request: Request) -> Response:
        return JSONResponse(await self._store.run(truth.read_truth))

    async def _act(self, request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            act = acts.ACT.validate_json(body)
        except ValidationError as error:
            return _invalid(error)
        if not await self._store.run(partial(acts.play, act=act)):
            return _refused(404, f"{act.system} has nothing under {act.identity!r}")
        return JSONResponse({"done": act.model_dump(mode="json")})

    async def _mails(self, _request: Request) -> Response:
        return JSONResponse(await self._store.run(mail.list_messages))

    async def _posts(self, _request: Request) -> Response:
        return JSONResponse(await self._store.run(hook.list_messages))

    def _shown(self) -> dict[str, object]:
        return {system: self._panel.show(system) for system in self._panel.systems}


async def _body(request: Request) -> bytes | Response:
    try:
        return await read_body(request.scope, request.receive)
    except BodyTooLarge as error:
        return _refused(413, str(error))
    except ClientGone:
        return Response(status_code=HTTPStatus.BAD_REQUEST)


def _invalid(error: ValidationError) -> Response:
    wrong = describe(error)
    detail = "; ".join(
        f"{item['knob']}: {item['message']}" if item["knob"] else item["message"] for item in wrong
    )
    return _refused(422, detail, errors=wrong)


def _refused(status: int, detail: str, **more: object) -> Response:
    return _response(problem(status, detail, **more))


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, headers=dict(answer.headers))
