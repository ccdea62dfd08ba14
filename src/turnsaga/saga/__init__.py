"""``TurnSaga``: carries a turn through inside a workflow, to a completed or a settled end."""

from turnsaga.saga._turn import SagaOptions, TurnSaga

__all__ = ["SagaOptions", "TurnSaga"]
