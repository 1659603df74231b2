"""Version 1: no lock."""

from fastapi import APIRouter

from demo.shop import add_item

router = APIRouter()


@router.post("/items", status_code=201)
def create_item(work: float) -> dict[str, int]:
    """Count, work, add. Other requests do the same at the same time."""
    return add_item(work)
