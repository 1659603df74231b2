"""The page in Django's admin: who may see what, and what the button does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse
from django.utils.timezone import now
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.busy import busy
from tests.support.waiting import eventually
from weblock.contrib.django import locks
from weblock.contrib.django.models import Fence

from .browser import browsing, emulate, picture

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_engine(url: str) -> Iterator[None]:
    with override_settings(
        WEBLOCK={"default": {"URL": url}, "jobs": {"URL": url, "NAMESPACE": "jobs"}}
    ):
        yield


@pytest.fixture(autouse=True)
def as_migrated() -> None:
    """Fills the tables that ``migrate`` fills: a test that names the apps it needs leaves them empty."""
    ContentType.objects.clear_cache()
    create_permissions(apps.get_app_config("weblock"), verbosity=0)


def client_of(*permissions: str, staff: bool = True) -> Client:
    user = User.objects.create_user("ann", password="secret", is_staff=staff)
    for each in permissions:
        user.user_permissions.add(
            Permission.objects.get(content_type__app_label="weblock", codename=each)
        )
    client = Client()
    client.force_login(user)
    return client


def listing() -> str:
    return reverse("admin:weblock_lock_changelist")


def naming(key: str, fence: int | None = None) -> dict[str, str]:
    """What names the lease that is to be released: the one that there is, or another."""
    if fence is None:
        info = locks["default"].inspect(key)
        assert info
        fence = info.fence
    return {"alias": "default", "key": key, "fence": str(fence)}


def holder_of(key: str) -> str | None:
    info = locks["default"].inspect(key)
    return info.holder if info else None


def test_no_key_turns_a_line_around() -> None:
    """Format characters in keys and labels are escaped on both pages; the button still means the key."""
    key = "item:\u202e7"
    client = client_of("view_lock", "release_lock")
    with busy(locks["default"], key, "web\u202e1", "web\u202e2"):
        pages = [
            client.get(listing()).content.decode(),
            client.get(f"{listing()}release/", naming(key)).content.decode(),
        ]
        for page in pages:
            assert all(f"{each}\\u202e" in page for each in ("item:", "web"))
            assert "web\u202e" not in page
            assert ">item:\u202e" not in page
        client.post(f"{listing()}release/", naming(key))
        assert holder_of(key) != "web\u202e1"


def test_it_lists_holders_and_queues() -> None:
    """The page has keys, holders, fences and queues of all aliases; what others chose is escaped."""
    client = client_of("view_lock")
    with (
        busy(locks["default"], "item:<1>", "web-1 GET /<script>", "web-2"),
        busy(locks["jobs"], "nightly", "cron-1"),
    ):
        page = client.get(listing()).content.decode()
        info = locks["default"].inspect("item:<1>")
        found = client.get(listing(), {"q": "night"}).content.decode()
    assert info
    for part in ("item:&lt;1&gt;", "web-1 GET /&lt;script&gt;", str(info.fence), "web-2", "cron-1"):
        assert part in page
    assert "<script>" not in page.replace('<script src="', "")
    assert "nightly" in found
    assert "item:" not in found


def test_it_names_all_who_share_a_key() -> None:
    """Each of several holders is listed with its fence, below the first and the number of the others."""
    client = client_of("view_lock")
    with ThreadPoolExecutor(1) as thread:
        others = thread.submit(
            locks["default"].acquire, "item:1", shared=True, label="web\u202e2 <script>"
        ).result()
        with locks["default"].hold("item:1", shared=True, label="web-1") as lease:
            page = client.get(listing()).content.decode()
        thread.submit(others.release).result()
    assert "<summary>web\\u202e2 &lt;script&gt; (+1)</summary>" in page
    assert f"<li>web\\u202e2 &lt;script&gt; ({others.fence})</li>" in page
    assert f"<li>web-1 ({lease.fence})</li>" in page


def test_one_may_look_without_releasing() -> None:
    """Who has only the permission to look sees no button, and is refused behind it."""
    client = client_of("view_lock")
    with busy(locks["default"], "item:1", "web-1"):
        assert "Release" not in client.get(listing()).content.decode()
        release = reverse("admin:weblock_lock_release")
        assert client.get(release, naming("item:1")).status_code == 403
        assert client.post(release, naming("item:1")).status_code == 403
        assert holder_of("item:1") == "web-1"


@pytest.mark.parametrize(
    ("permissions", "staff", "status"), [((), True, 403), (("view_lock",), False, 302)]
)
def test_others_see_nothing(permissions: tuple[str, ...], staff: bool, status: int) -> None:
    """Without the permission to look, or outside the staff, there is no page."""
    assert client_of(*permissions, staff=staff).get(listing()).status_code == status


def test_release_is_asked_for_and_audited(caplog: pytest.LogCaptureFixture) -> None:
    """A look at the question releases nothing; the answer does, and two logs say who took what."""
    client = client_of("view_lock", "release_lock")
    release = reverse("admin:weblock_lock_release")
    with busy(locks["default"], "item:1", "web-1", "web-2"), caplog.at_level(logging.WARNING):
        question = client.get(release, named := naming("item:1")).content.decode()
        assert "It passes to web-2 at once" in question
        assert holder_of("item:1") == "web-1"
        page = client.post(release, named, follow=True).content.decode()
        assert holder_of("item:1") == "web-2"
    assert "Released item:1, taken from web-1." in page
    lines = [each.getMessage() for each in caplog.records if each.name == "weblock.audit"]
    assert [line.partition(" by force")[0] for line in lines] == [
        "'ann (admin)' took the lease of 'item:1' from 'web-1'"
    ]
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.object_repr) == ("ann", "default: item:1")
    assert entry.get_change_message().startswith("Taken from web-1 by force (fence ")
    assert "default: item:1" in client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize("method", ["get", "post"])
def test_another_holder_than_the_one_seen_is_spared(method: str) -> None:
    """A key that has changed hands since the list was made is not taken from the new holder."""
    client = client_of("view_lock", "release_lock")
    with busy(locks["default"], "item:1", "web-1"):
        send = getattr(client, method)
        release = reverse("admin:weblock_lock_release")
        page = send(release, naming("item:1", fence=7), follow=True).content.decode()
        assert "has changed hands: it is held by web-1 now" in page
        assert holder_of("item:1") == "web-1"
    assert not LogEntry.objects.exists()


def test_a_forged_release_is_refused() -> None:
    """Another site cannot have a user's browser release: the token is asked for."""
    client = client_of("view_lock", "release_lock")
    client.handler.enforce_csrf_checks = True
    with busy(locks["default"], "item:1", "web-1"):
        release = reverse("admin:weblock_lock_release")
        assert client.post(release, naming("item:1")).status_code == 403
        assert holder_of("item:1") == "web-1"


def test_an_engine_that_is_down_is_shown() -> None:
    """An engine that does not answer is named in its place, without the password; others are shown."""
    down = {"URL": "redis://:s3cret@127.0.0.1:1"}
    with override_settings(WEBLOCK={"default": {"URL": "memory://"}, "far": down}):
        response = client_of("view_lock").get(listing())
    page = response.content.decode()
    assert response.status_code == 200
    assert "redis://127.0.0.1:1 is unavailable" in page
    assert "s3cret" not in page
    assert "No key is held or waited for on memory://" in page


def test_it_shows_the_fences_of_the_guard() -> None:
    """Who may look finds the fence of a key as the database knows it, and changes nothing."""
    Fence.objects.create(
        digest="d", lock_key="default:item:7", fence=1763712000000001, token="t", raised_at=now()
    )
    client = client_of("view_fence")
    page = client.get(reverse("admin:weblock_fence_changelist")).content.decode()
    assert "default:item:7" in page
    assert "1763712000000001" in page
    assert client.post(reverse("admin:weblock_fence_delete", args=["d"])).status_code == 403


def test_the_model_wants_no_migration_of_a_project() -> None:
    """A project that installs the app has no migration of it to make."""
    output = StringIO()
    call_command("makemigrations", "weblock", check_changes=True, stdout=output)
    assert "No changes" in output.getvalue()


LINES_OF_TEXT = """
    const text = document.createRange();
    text.selectNodeContents(arguments[0]);
    return text.getClientRects().length;
"""


@pytest.mark.django_db(transaction=True)
def test_in_a_browser(live_server: LiveServer, tmp_path: Path) -> None:
    """Somebody looks at the list, releases a key, is asked, and sees who has got it then.

    The list fits the window, whatever a stranger has asked for.
    """
    User.objects.create_superuser("ann", password="secret")
    with (
        browsing(tmp_path) as browser,
        busy(locks["default"], "item:1", "web-1:4242 POST /items", "web-2:977 POST /items"),
        ExitStack() as stack,
    ):
        log_in(browser, f"{live_server.url}{listing()}")
        for scheme in ("dark", "light"):
            emulate(browser, scheme, 1280, 460)
            picture(browser, tmp_path, f"admin-{scheme}")
        stack.enter_context(busy(locks["default"], 300 * "x", f"web-3:12 POST /{150 * 'y'}"))
        browser.refresh()
        row = browser.find_element(By.CSS_SELECTOR, "tr[data-key='item:1']")
        assert "web-1:4242 POST /items" in row.text
        assert browser.execute_script("return document.body.scrollWidth <= window.innerWidth")
        crumbs = browser.find_element(By.CLASS_NAME, "breadcrumbs")
        assert crumbs.value_of_css_property("padding-left") == "40px"  # As on Django's own pages.

        for width in (390, 1280):  # A phone, first.
            emulate(browser, "light", width)
            eventually(lambda width=width: width_of_page(browser) <= width)  # type: ignore[misc]
            key = row.find_element(By.TAG_NAME, "th")
            assert browser.execute_script(LINES_OF_TEXT, key) == 1  # The others leave it room.

        row.find_element(By.LINK_TEXT, "Release…").click()
        button = browser.find_element(By.CSS_SELECTOR, "input[value='Yes, release it']")
        assert "It passes to web-2:977 POST /items at once" in browser.page_source

        button.click()
        said = browser.find_element(By.CLASS_NAME, "messagelist").text
        assert said == "Released item:1, taken from web-1:4242 POST /items."
        row = browser.find_element(By.CSS_SELECTOR, "tr[data-key='item:1']")
        assert "web-2:977 POST /items" in row.text


def width_of_page(browser: Chrome) -> int:
    return int(browser.execute_script("return document.documentElement.scrollWidth"))


def log_in(browser: Chrome, page: str) -> None:
    browser.get(page)
    browser.find_element(By.NAME, "username").send_keys("ann")
    browser.find_element(By.NAME, "password").send_keys("secret")
    browser.find_element(By.CSS_SELECTOR, "input[type=submit]").click()
