"""The live page in a real browser, from a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentjet.client import AsyncSwarmClient
from ajet_cli.report.markup import Html, document
from ajet_cli.report.reading import RunReport
from ajet_cli.report.run_page import comparable
from ajet_core.interfaces import LoggedRun
from ajet_core.protocol import RunConfig
from ajet_loggers.tracking import flat_config
from ajet_server.security.secrets import without_secrets
from ajet_testing.servers import CLIENT, CONTROL, TOKENS, Running, ServerFactory, new_token
from tests.page.held_engine import half_answered
from tests.page.test_page_routes import HOSTILE
from tests.page.test_running_stream import streams
from tests.support.browser import connected, shared_browser

pytestmark = pytest.mark.processes

Open = Callable[..., Awaitable[Any]]

# `HOSTILE` as the page shows it.
SHOWN = '<img src=x onerror="alert(1)"> \\u202e \\u001b[2J'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared_browser(tmp_path_factory.mktemp("browser") / "profile") as address:
        yield address


@pytest_asyncio.fixture
async def browser(shared: str) -> AsyncIterator[Any]:
    async with connected(shared) as running:
        yield running


@pytest_asyncio.fixture
async def listening(servers: ServerFactory) -> AsyncIterator[Running]:
    """A server on a real socket, with one trained step."""
    async with servers.running() as server:
        await server.roll()
        await server.batch()
        yield server


@pytest_asyncio.fixture
async def open_page(browser: Any, listening: Running) -> AsyncIterator[Open]:
    """Opens a view of the page; no script may fail, and nothing may be requested elsewhere."""
    problems: list[str] = []
    pages: list[Any] = []

    async def open_page(view: str = "", *, scope: str = "view", width: int = 1300) -> Any:
        _, headers = await new_token(listening, f"viewer-{len(pages)}", scope=scope)
        token = headers["authorization"].removeprefix("Bearer ")
        page = await browser.new_page(viewport={"width": width, "height": 900})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.on(
            "request",
            lambda request: problems.extend(
                [request.url] * (not request.url.startswith(listening.url))
            ),
        )
        await page.goto(f"{listening.url}/ui/#token={token}")
        await page.goto(f"{listening.url}/ui/#/{view}")
        await page.wait_for_selector(".view")
        pages.append(page)
        return page

    yield open_page
    assert problems == []


async def test_the_token_leaves_the_address(open_page: Open) -> None:
    page = await open_page()
    assert "token" not in page.url
    assert await page.evaluate("sessionStorage.getItem('ajet-token')")


async def test_without_a_token_it_asks_for_one(browser: Any, listening: Running) -> None:
    _, headers = await new_token(listening, "viewer", scope="view")
    page = await browser.new_page()
    await page.goto(f"{listening.url}/ui/")
    await page.fill("#token", "wrong")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("[role=alert]")
    await page.fill("#token", headers["authorization"].removeprefix("Bearer "))
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".view.overview")


async def test_the_overview_has_a_sentence_and_curves(open_page: Open) -> None:
    page = await open_page()
    await page.wait_for_selector("figure[data-metrics^=reward_mean] canvas")
    assert "is filling the batch of step 2" in await page.inner_text("#sentence")
    assert "reward_mean" in await page.inner_text("figure[data-metrics^=reward_mean]")
    assert await page.get_attribute(".plot", "aria-label")


async def test_time_and_money_are_shown(open_page: Open, listening: Running) -> None:
    async with AsyncSwarmClient(listening.url, TOKENS.control) as client:
        await client.report_spending(1.5, source=HOSTILE)
        await client.set_budget(usd=4.0)
    page = await open_page()
    await page.wait_for_selector("p.left")
    assert "cost 1.50 USD · budget 4.00 USD" in await page.inner_text("p.left")
    shown = page.locator("section", has_text="Time and money")
    assert "device-hours" in await shown.inner_text()
    assert await shown.locator("img").count() == 0


async def test_a_new_step_appears(open_page: Open, listening: Running) -> None:
    page = await open_page()
    await listening.batch()
    await page.locator("#sentence", has_text="the batch of step 3").wait_for()


async def test_bad_answers_do_not_end_the_polling(browser: Any, listening: Running) -> None:
    _, headers = await new_token(listening, "viewer", scope="view")
    page = await browser.new_page()
    # Limits of requests of about a second, so that the test does not wait for a minute.
    await page.add_init_script(
        "const limit = AbortSignal.timeout.bind(AbortSignal);"
        "AbortSignal.timeout = (ms) => limit(ms / 20);"
    )
    token = headers["authorization"].removeprefix("Bearer ")
    await page.goto(f"{listening.url}/ui/#token={token}")
    await page.locator("#sentence", has_text="the batch of step 2").wait_for()
    asked: list[str] = []

    async def answer(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            await route.fulfill(json={})
        elif len(asked) > 2:
            await route.continue_()

    await page.route("**/v1/overview", answer)
    await listening.batch()
    await page.locator("#fresh", has_text="does not answer").wait_for()
    await page.locator("#sentence", has_text="the batch of step 3").wait_for()
    assert len(asked) >= 3


async def test_hostile_texts_stay_texts(open_page: Open, listening: Running) -> None:
    grant = await listening.claim(HOSTILE)
    messages = [{"role": "user", "content": HOSTILE}]
    assert (await listening.chat(grant, messages=messages)).status_code == 200
    page = await open_page(f"episode/{grant['episode_id']}")
    await page.wait_for_selector(".message.user")
    shown = await page.inner_text(".message.user pre")
    assert shown == SHOWN
    assert await page.locator("img").count() == 0
    await page.click("summary")
    viewer = page.frame_locator("iframe")
    await viewer.locator(".t").first.wait_for()
    assert await viewer.locator("img").count() == 0


async def test_zero_has_no_sign(open_page: Open) -> None:
    page = await open_page()
    written = await page.evaluate(
        "import('/ui/dom.js').then(({ number }) => [-0, 0, -1, 1234567, -0.25].map(number))"
    )
    assert written == ["0", "0", "-1", "1,234,567", "-0.25"]


async def test_messages_of_an_open_episode_come_in(open_page: Open, listening: Running) -> None:
    grant = await listening.claim("watched")
    page = await open_page(f"episode/{grant['episode_id']}")
    assert await page.locator(".message").count() == 0
    assert (await listening.chat(grant)).status_code == 200
    await page.wait_for_selector(".message.assistant", timeout=30_000)


async def test_tokens_come_in_while_a_call_runs(open_page: Open, listening: Running) -> None:
    grant = await listening.claim("watched")
    page = await open_page(f"episode/{grant['episode_id']}")
    text = f"{HOSTILE} </li><b>and more</b>"
    messages = [{"role": "user", "content": HOSTILE}]
    request = {"messages": messages, "stream": True}
    async with half_answered(listening, grant, text, 30, **request) as (engine, _):
        running = page.locator(".message.running")
        await running.locator("text=30 tokens").wait_for(timeout=30_000)
        shown = await running.locator("pre").inner_text()
        assert shown
        assert SHOWN.startswith(shown)
        assert await page.inner_text(".message.user pre") == SHOWN
        assert await page.locator("img").count() == 0
        assert await page.inner_text(".conversation + [role=status]") == "1 call is being answered."
        assert engine.hold is not None
        engine.hold.set()
    # The answer takes the place of what was being written.
    await page.locator(".message.assistant:not(.running)").wait_for(timeout=30_000)
    await running.wait_for(state="detached")
    assert await page.locator(".message.user").count() == 1
    assert await page.inner_text(".message.assistant pre") == f"{SHOWN} </li><b>and more</b>"
    assert await page.inner_text(".conversation + [role=status]") == ""


async def test_a_call_that_was_begun_before_is_shown_until_the_view_is_left(
    open_page: Open, listening: Running
) -> None:
    grant = await listening.claim("watched")
    async with half_answered(listening, grant, "hello there", 2, stream=True):
        page = await open_page(f"episode/{grant['episode_id']}")
        await page.locator(".message.running", has_text="2 tokens").wait_for()
        assert streams(listening) == 1
        await page.click("nav >> text=Curves")
        await page.wait_for_selector(".view.curves")
        async with asyncio.timeout(30):
            while streams(listening):
                await asyncio.sleep(0)
        await page.go_back()
        await page.locator(".message.running", has_text="2 tokens").wait_for()


async def test_only_control_pauses_and_it_asks_first(open_page: Open, listening: Running) -> None:
    page = await open_page(scope="control")
    page.once("dialog", lambda dialog: dialog.dismiss())
    await page.click("text=Pause")
    assert (await listening.service.status()).paused is None
    page.once("dialog", lambda dialog: dialog.accept())
    await page.click("text=Pause")
    await page.wait_for_selector("text=Resume")
    assert (await listening.service.status()).paused == "paused on the page"


async def test_every_view_fits_on_a_phone_and_is_reached_by_keyboard(open_page: Open) -> None:
    page = await open_page(width=360)
    for name in ("Curves", "Episodes", "Tasks", "Compare", "Server", "Overview"):
        link = page.get_by_role("link", name=name, exact=True)
        await link.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_selector(f".view.{name.lower()}")
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, name


async def test_two_steps_of_a_task_stand_side_by_side(open_page: Open, listening: Running) -> None:
    await listening.batch()
    page = await open_page("step/2?with=1")
    await page.wait_for_selector(".side table")
    assert await page.locator(".side").first.locator("table").count() == 2


async def test_the_skip_link_keeps_the_view(open_page: Open) -> None:
    page = await open_page("episodes")
    await page.focus(".skip")
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "content"
    assert await page.locator(".view.episodes").count() == 1


async def test_an_address_that_is_none_of_the_page_says_so(open_page: Open) -> None:
    page = await open_page()
    for view, text in (("nothing", "no such view"), ("episode/%", "not one of this page")):
        await page.goto(f"{page.url.partition('#')[0]}#/{view}")
        await page.locator("#content", has_text=text).wait_for()


async def test_a_filter_keeps_the_keyboard(open_page: Open) -> None:
    page = await open_page("episodes")
    await page.focus("#state")
    await page.select_option("#state", "ended")
    await page.locator("td", has_text="ended").first.wait_for()
    assert await page.evaluate("document.activeElement.id") == "state"
    assert "state=ended" in page.url


async def test_a_step_has_its_metrics(open_page: Open) -> None:
    page = await open_page("step/1")
    await page.locator("table", has_text="reward_mean").wait_for()


async def test_a_step_is_reached_by_keyboard_from_every_view(open_page: Open) -> None:
    page = await open_page("server")
    await page.locator(".view.server table").first.wait_for()
    await page.keyboard.press("Alt+g")
    assert await page.evaluate("document.activeElement.id") == "goto-step"
    await page.keyboard.type("1")
    await page.keyboard.press("Enter")
    await page.locator("h2", has_text="Step 1").wait_for()
    assert await page.evaluate("document.activeElement.id") == "content"


async def test_a_task_of_two_steps_is_found_and_its_best_messages_are_compared(
    open_page: Open, listening: Running
) -> None:
    await listening.batch()
    page = await open_page("tasks")
    await page.fill("#find", "a")
    await page.keyboard.press("Enter")
    await page.locator("caption", has_text="1 task").wait_for()
    await page.get_by_role("link", name="compare then and now").click()
    await page.locator("h3", has_text="Step 1: reward 1").wait_for()
    assert await page.locator("h3", has_text="Step 2: reward 1").count() == 1
    assert await page.locator(".message.assistant").count() == 2
    assert await page.get_by_text("Task a", exact=True).count() == 1
    assert await page.locator("h2", has_text="Task b").count() == 0
    await page.fill("#with", "2")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/step/2?with=2&task=a")
    await page.get_by_role("link", name="step 1", exact=True).click()
    await page.locator("h2", has_text="Step 1, task a").wait_for()
    await page.get_by_role("link", name="step 2", exact=True).click()
    await page.locator("h2", has_text="Step 2, task a").wait_for()
    await page.get_by_role("link", name="all tasks").click()
    await page.get_by_text("Step 2", exact=True).wait_for()
    assert page.url.endswith("#/step/2")


async def test_why_a_run_is_paused_is_shown_once(open_page: Open, listening: Running) -> None:
    body = {"reason": "<b>no space</b>"}
    answer = await listening.http.post("/v1/run/pause", headers=CONTROL, json=body)
    assert answer.status_code == 200
    page = await open_page()
    await page.locator("#sentence", has_text="The run is paused since ").wait_for()
    text = await page.inner_text("body")
    assert text.count("<b>no space</b>") == 1
    assert "nothing that is watched looks wrong" not in text


async def test_what_a_step_reported_is_folded_below_findings_of_the_run(open_page: Open) -> None:
    page = await open_page("server")
    found = {"code": "cut_off", "message": "<i>cut</i>", "seconds": 1.0, "stuck": False}

    async def answer(route: Any) -> None:
        overview = await (await route.fetch()).json()
        overview["status"]["findings"] = [{**found, "since_step": 1, "good_step": 0}]
        overview["status"]["last_step"]["findings"] = ["<i>cut</i>", "cut in other words"]
        await route.fulfill(json=overview)

    await page.route("**/v1/overview", answer)
    await page.get_by_role("link", name="Overview").click()
    await page.wait_for_selector(".findings")
    assert await page.locator(".findings li").count() == 1
    other = page.get_by_text("cut in other words")
    assert not await other.is_visible()
    await page.get_by_text("Also reported for step 1").click()
    assert await other.is_visible()
    assert await page.locator("i").count() == 0


async def with_pages_of_one(page: Any, path: str, size: int) -> None:
    """Let the server answer with one row where the page asks for `size`."""

    async def ask(route: Any) -> None:
        url = route.request.url
        await route.continue_(
            url=url.replace(f"limit={size}", "limit=1").replace(f"skip={size}", "skip=1")
        )

    await page.route(f"**{path}?*", ask)


@pytest.mark.parametrize(
    ("view", "nouns", "total"), [("tasks", "Tasks", 2), ("episodes", "Episodes", 4)]
)
async def test_a_list_has_further_pages(open_page: Open, view: str, nouns: str, total: int) -> None:
    page = await open_page("server")
    await with_pages_of_one(page, f"/v1/{view}", 200)
    await page.get_by_role("link", name=nouns, exact=True).click()
    await page.locator("caption", has_text=f"{nouns} 1 to 1 of {total}").wait_for()
    first = await page.inner_text("td >> nth=0")
    await page.get_by_role("link", name="next page").click()
    await page.locator("caption", has_text=f"{nouns} 201 to 201 of {total}").wait_for()
    assert await page.inner_text("td >> nth=0") != first
    await page.get_by_role("link", name="previous page").click()
    await page.locator("caption", has_text=f"{nouns} 1 to 1 of {total}").wait_for()
    assert await page.inner_text("td >> nth=0") == first


async def test_a_step_leads_to_all_its_episodes(open_page: Open) -> None:
    page = await open_page("server")
    await with_pages_of_one(page, "/v1/episodes", 100)
    await page.fill("#goto-step", "1")
    await page.keyboard.press("Enter")
    await page.locator("caption", has_text="The 100 with the highest reward first").wait_for()
    await page.get_by_role("link", name="all 4 episodes of step 1").click()
    await page.locator("caption", has_text="4 episodes").wait_for()
    assert await page.input_value("#step") == "1"


async def test_the_mixture_form_has_the_ratios_of_the_present_stage(
    open_page: Open, listening: Running
) -> None:
    stage = {"from_step": 3, "ratios": {"easy": 0.75, "hard": 0.25}}
    config = {"ratios": {"easy": 0.5, "hard": 0.5}, "schedule": [stage]}
    answer = await listening.http.put("/v1/mixture", headers=CONTROL, json=config)
    assert answer.status_code == 200
    page = await open_page(scope="control")
    assert await page.input_value("#ratio-0") == "0.5"
    for task, tag in (("a", "easy"), ("b", "hard")):
        for reward in (0.0, 1.0):
            grant = await listening.claim(task, tag=tag)
            assert (await listening.chat(grant)).status_code == 200
            assert (await listening.end(grant, reward)).status_code == 200
    await page.locator("#ratio-0[value='0.75']").wait_for()


async def test_only_control_changes_the_mixture_and_it_asks_first(
    open_page: Open, listening: Running
) -> None:
    ratios = {"maths": 0.5, HOSTILE: 0.5}
    answer = await listening.http.put("/v1/mixture", headers=CONTROL, json={"ratios": ratios})
    assert answer.status_code == 200
    viewer = await open_page()
    await viewer.wait_for_selector("figure canvas")
    assert await viewer.locator("#ratio-0").count() == 0
    page = await open_page(scope="control")
    await page.fill("#ratio-0", "0.9")
    assert await page.inner_text("output") == "sum 1.4"
    await page.click("text=Change the mixture")
    await page.locator("[role=status]", has_text="must sum to 1").wait_for()
    await page.fill("#ratio-1", "0.1")
    questions = []

    async def refuse(dialog: Any) -> None:
        questions.append(dialog.message)
        await dialog.dismiss()

    page.once("dialog", refuse)
    await page.click("text=Change the mixture")
    assert "maths 0.9" in questions[0]
    assert (await mixture_of(listening))["maths"] == 0.5
    page.once("dialog", lambda dialog: dialog.accept())
    async with page.expect_response("**/v1/mixture"):
        await page.click("text=Change the mixture")
    assert (await mixture_of(listening))["maths"] == 0.9


async def mixture_of(server: Running) -> dict[str, float]:
    """The ratios of a server."""
    answer = await server.http.get("/v1/mixture", headers=CONTROL)
    ratios: dict[str, float] = answer.json()["config"]["ratios"]
    return ratios


async def test_settings_of_the_same_run_do_not_differ(
    open_page: Open, listening: Running, tmp_path: Path
) -> None:
    settings = {
        "prompt": "\U0001f600 what? " * 60,
        "stops": ["</s>", "\u20ac"] * 60,
        "size": 1e-6,
        "url": "http://me:hunter@host/v1",
    }
    config = without_secrets(RunConfig.model_validate(listening.config(engine=settings)))

    async def configured(route: Any) -> None:
        overview = await (await route.fetch()).json()
        await route.fulfill(json={**overview, "config": config.model_dump(mode="json")})

    flat = flat_config(LoggedRun("", config, 0))
    report = tmp_path / "report.html"
    data = comparable(RunReport("the same", config=flat))
    two = [
        {"tag": "held-out", "client": "a", "step": 9, "pass_at": {"1": [0.75, None]}},
        {"tag": "held-out", "client": "b", "step": 4, "pass_at": {"1": [0.25, None]}},
    ]
    data["evaluations"] = two
    report.write_text(document("title", "", Html("<p></p>"), [data]), encoding="utf-8")
    page = await open_page()
    await page.route("**/v1/overview", configured)
    await page.get_by_role("link", name="Compare").click()
    await page.set_input_files("#reports", report)
    await page.get_by_text("All settings are the same.").wait_for()
    # Of two clients, the evaluation at the last step is shown.
    assert await page.locator("td", has_text="step 9: pass@1 0.75").count() == 1
    assert await page.locator("td", has_text="step 4").count() == 0


async def test_this_run_is_compared_with_a_report(
    open_page: Open, listening: Running, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    run = {
        "name": HOSTILE,
        "curves": {"steps": [1, 2], "curves": {"reward_mean": {"mean": [0.25, 0.75]}}},
        "config": {"algorithm.learning_rate": "0.125", "checkpoint_every": "2.0"},
        "final": {"reward_mean": [0.5, [0.4, 0.6], 2]},
        "evaluations": [
            {"tag": "held-out", "step": 2, "pass_at": {"1": [0.5, [0.25, 0.75]]}},
        ],
    }
    report.write_text(document("title", "", Html("<p></p>"), [run]), encoding="utf-8")
    page = await open_page("compare")
    await page.set_input_files("#reports", report)
    await page.locator("td", has_text="0.5 (0.4 to 0.6)").wait_for()
    assert await page.locator("img").count() == 0
    chart = page.locator("figure[data-metrics*='A this run']").first
    label = await chart.locator(".plot").get_attribute("aria-label")
    assert "A this run" in label
    assert "B <img src=x" in label
    assert await page.locator("tr", has_text="algorithm.learning_rate").count() == 1
    # The same in another spelling.
    assert await page.locator("tr", has_text="checkpoint_every").count() == 0
    assert await page.locator("tr", has_text="pass@1 0.5 (0.25 to 0.75)").count() == 1
    other = tmp_path / "other.html"
    other.write_text("<p>not a report</p>", encoding="utf-8")
    await page.set_input_files("#reports", other)
    await page.locator("[role=alert]", has_text="is not a report").wait_for()
    await page.click("text=Remove all")
    await page.locator("td", has_text="0.5 (0.4 to 0.6)").wait_for(state="detached")


async def scored_batch(server: Running) -> None:
    """A trained batch whose episodes report components of their rewards."""
    step = server.service.coordinator.step
    for task in ("a", "b"):
        for reward in (0.0, 1.0):
            grant = await server.claim(task)
            assert (await server.chat(grant)).status_code == 200
            answer = await server.http.post(
                f"/v1/episodes/{grant['episode_id']}/end",
                headers=CLIENT,
                json={"reward": reward, "components": {"success": 1 - reward, HOSTILE: 2.0}},
            )
            assert answer.status_code == 200
    await server.service.board.wait_until(lambda: server.service.coordinator.step > step)


async def test_components_of_the_reward_are_curves_and_columns(
    open_page: Open, listening: Running
) -> None:
    await scored_batch(listening)
    page = await open_page()
    await page.wait_for_selector("figure[data-metrics*='component_mean/success'] canvas")
    for view in ("step/2", "episodes?step=2"):
        await page.goto(f"{page.url.partition('#')[0]}#/{view}")
        row = page.locator("tr", has=page.locator("th", has_text="success"))
        await row.locator("th", has_text="<img").first.wait_for()
    assert await page.locator("img").count() == 0


async def with_overview(page: Any, **changes: Any) -> None:
    """Let the page see another state of the server."""

    async def changed(route: Any) -> None:
        overview = await (await route.fetch()).json()
        await route.fulfill(json={**overview, "status": {**overview["status"], **changes}})

    await page.route("**/v1/overview", changed)


async def test_what_findings_name_is_linked(open_page: Open, listening: Running) -> None:
    episode = "0123456789abcdef01234567"
    message = f"task 'a & b' (episode {episode} of client me: {HOSTILE}"
    finding = {"code": "tools_alike", "message": message, "seconds": 1, "stuck": False}
    page = await open_page()
    await with_overview(page, findings=[{**finding, "since_step": 1, "good_step": 0}])
    shown = page.locator(".findings li")
    await shown.first.wait_for(timeout=30_000)
    links = await shown.locator("a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    assert links == [
        "#/episodes?task=a%20%26%20b&outputs=1",
        f"#/episode/{episode}",
        "#/episodes?client=me",
        "#/step/1",
        "#/example/1?order=lowest",
    ]
    assert SHOWN in await shown.inner_text()
    assert await page.locator("img").count() == 0
    await shown.locator("a").last.click()
    await page.wait_for_url("**/#/episode/*")
    await page.locator("p", has_text="reward 0").wait_for()


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("step/0", "Step 0 is the model before the training"),
        ("step/x", "x is not a step"),
        ("step/1?with=0", "Step 0 is the model before the training"),
        ("step/99", "Step 99 has not been trained yet. The last one is step 1."),
        ("episodes?step=0", "0 is not a step"),
    ],
)
async def test_a_step_that_does_not_exist_gets_a_sentence(
    open_page: Open, view: str, text: str
) -> None:
    page = await open_page(view)
    await page.locator("#content", has_text=text).wait_for()


async def test_keys_turn_to_the_episodes_beside_also_in_the_viewer(open_page: Open) -> None:
    page = await open_page("episodes")
    ids = await page.locator("tbody td:first-child a").all_inner_texts()
    await page.get_by_role("link", name=ids[1]).click()
    await page.locator("h2", has_text=ids[1]).wait_for()
    await page.keyboard.press("]")
    await page.locator("h2", has_text=ids[2]).wait_for()
    await page.click("summary")
    viewer = page.frame_locator("iframe")
    await viewer.locator(".t").first.click()
    await page.keyboard.press("[")
    await page.locator("h2", has_text=ids[1]).wait_for()
    await page.get_by_role("link", name="previous episode").click()
    await page.locator("h2", has_text=ids[0]).wait_for()
    assert await page.get_by_role("link", name="previous episode").count() == 0


async def test_going_back_keeps_the_scroll_position(open_page: Open) -> None:
    page = await open_page("curves")
    await page.locator(".chart").first.wait_for()
    await page.evaluate("scrollTo(0, 400)")
    await page.wait_for_function("scrollY === 400")
    await page.get_by_role("link", name="Server").evaluate("(link) => link.click()")
    await page.wait_for_selector(".view.server")
    await page.wait_for_function("scrollY === 0")
    await page.go_back()
    await page.wait_for_selector(".view.curves")
    await page.wait_for_function("scrollY === 400")


async def test_curves_come_in_groups_and_all_are_within_reach(open_page: Open) -> None:
    page = await open_page("curves")
    await page.locator(".chart").first.wait_for()
    names = await page.locator(".charts > .chart").evaluate_all(
        "all => all.map((card) => card.dataset.metrics)"
    )
    assert names[0] == "reward_mean"
    assert names.index("reward_std") < names.index("episodes") < names.index("tokens_raw")
    assert "calls_aborted" not in names
    await page.locator(".charts summary", has_text="that are 0 in each step").click()
    await page.locator("figure[data-metrics=calls_aborted]").wait_for()


async def test_more_metrics_than_fit_at_first_are_shown_on_request(open_page: Open) -> None:
    page = await open_page("server")
    many = [f"m{number:03}" for number in range(70)]

    async def answer(route: Any) -> None:
        curves = {name: {"mean": [1.0], "low": [], "high": []} for name in many}
        one = {"total": 1, "steps": [1], "times": [1.0], "names": many, "curves": curves}
        await route.fulfill(json=one)

    await page.route("**/v1/steps?*", answer)
    await page.get_by_role("link", name="Curves").click()
    await page.get_by_role("button", name="Show all 70 metrics").click()
    await page.locator("figure[data-metrics=m069]").wait_for()


async def test_a_step_is_opened_from_a_chart_by_keyboard(
    open_page: Open, listening: Running
) -> None:
    await listening.batch()
    page = await open_page()
    await page.wait_for_selector("figure[data-metrics^=reward_mean] canvas")
    await page.get_by_role("slider", name="Reward:").focus()
    await page.keyboard.press("ArrowLeft")
    await page.locator("[role=slider][aria-valuetext='step 1']").wait_for()
    await page.keyboard.press("Enter")
    await page.locator("h2", has_text="Step 1").wait_for()


async def test_the_scatter_has_ticks_and_no_correlation_without_differences(
    open_page: Open,
) -> None:
    page = await open_page("step/1")
    scatter = page.locator(".scatter")
    await scatter.wait_for()
    ticks = await scatter.locator("text").all_text_contents()
    assert {"0", "1", "sampled tokens"} <= set(ticks)

    async def equal(route: Any) -> None:
        answer = await (await route.fetch()).json()
        rows = [{**row, "reward": 0.5} for row in answer["episodes"]]
        await route.fulfill(json={**answer, "episodes": rows})

    await page.route("**/v1/episodes?*", equal)
    await page.reload()
    await page.locator(
        ".scatter", has_text="No correlation, because all rewards are equal"
    ).wait_for()


async def test_a_long_list_of_episodes_has_pages(open_page: Open) -> None:
    page = await open_page("server")

    async def many(route: Any) -> None:
        answer = await (await route.fetch()).json()
        row = answer["episodes"][0] if answer["episodes"] else None
        rows = [row] * 200 if row else []
        await route.fulfill(json={**answer, "episodes": rows, "more": bool(row), "total": 450})

    await page.route("**/v1/episodes?*", many)
    await page.get_by_role("link", name="Episodes").click()
    await page.locator("caption", has_text="Episodes 1 to 200 of 450").wait_for()
    await page.get_by_role("link", name="next page").click()
    await page.wait_for_url("**/episodes?skip=200")
    await page.get_by_role("link", name="previous page").wait_for()


async def test_settings_that_are_not_the_defaults_come_first(open_page: Open) -> None:
    page = await open_page("server")
    changed = page.locator("section", has_text="Settings that are not the defaults").locator(
        "table"
    )
    await changed.locator("td", has_text="model.path").wait_for()
    assert await changed.locator("td", has_text="max_grad_norm").count() == 0


async def test_the_viewer_shows_tokens_on_a_phone(open_page: Open) -> None:
    page = await open_page("episodes", width=360)
    await page.locator("tbody td:first-child a").first.click()
    await page.click("summary")
    await page.locator("iframe").scroll_into_view_if_needed()
    token = page.frame_locator("iframe").locator(".t").first
    await token.wait_for()
    inside = await token.evaluate("(token) => token.getBoundingClientRect().bottom")
    assert inside < 300


async def test_roles_have_no_colour_where_colours_mean_advantages(open_page: Open) -> None:
    page = await open_page("episodes")
    await page.locator("tbody td:first-child a").first.click()
    await page.click("summary")
    viewer = page.frame_locator("iframe")
    tags = viewer.locator(".tag")
    await tags.first.wait_for()
    colours = "all => [...new Set(all.map((tag) => getComputedStyle(tag).backgroundColor))]"
    assert len(await tags.evaluate_all(colours)) > 1
    await viewer.locator("#modes").get_by_text("Advantage").click()
    assert len(await tags.evaluate_all(colours)) == 1
