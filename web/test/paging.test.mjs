// A member's proxy with a quarter of a million routes: the page reads them a part at a time, and by keyboard; and hints, likewise.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const ROUTES = 250_000;
/** The routes by number. One that has gone is in no page. */
const gone = new Set();
const prefixOf = (number) => `10.${number >> 16}.${(number >> 8) & 255}.${number & 255}/32`;
const numberOf = (prefix) => prefix.split("/")[0].split(".").slice(1).reduce((number, octet) => number * 256 + Number(octet), 0);
const route = (number) => ({ prefix: prefixOf(number), announcer: { slot: 1, name: "bravo", asn: 64498 }, as_path: [64498], state: "installed", communities: [] });

/** What was asked for, as parameters. */
const asked = [];

function routesPage(parameters) {
  asked.push(Object.fromEntries(parameters));
  const most = Number(parameters.get("most"));
  const behind = parameters.get("after");
  const rows = [];
  let number = behind === null ? 0 : numberOf(behind.split(",")[0]) + 1;
  for (; number < ROUTES && rows.length < most; number += 1) if (!gone.has(number)) rows.push(route(number));
  const more = number < ROUTES;
  return { version: 1, routes: rows, more, next: more ? `${rows.at(-1).prefix},1` : null, installed: ROUTES - gone.size };
}

const PAGES = {
  overview: () => ({ role: "member", run: "a", title: "member in slot 0", ready: true, problems: [], columns: ["peer", "state"], rows: [{ well: true, cells: ["party 1", "up"] }], counts: [] }),
  events: () => ({ run: "a", events: [] }),
  routes: routesPage,
};

const folder = mkdtempSync(join(tmpdir(), "wayleave-paging-"));
let role;
let program;
let browser;
let page;
let at;

const listening = (server) => new Promise((ready) => server.listen(0, "127.0.0.1", () => ready(server.address().port)));

before(async () => {
  role = createServer((request, answer) => {
    const { pathname, searchParams } = new URL(request.url, "http://role");
    const of = PAGES[pathname.replace("/api/v1/", "")];
    answer.writeHead(of === undefined ? 404 : 200, { "content-type": "application/json" });
    answer.end(JSON.stringify(of === undefined ? { error: "this role has no such page" } : of(searchParams)));
  });
  const rolePort = await listening(role);
  const probe = createServer();
  const port = await listening(probe);
  await new Promise((closed) => probe.close(closed));
  writeFileSync(
    join(folder, "console.toml"),
    `[console]\n[[source]]\nname = "alpha"\nat = "http://127.0.0.1:${rolePort}"\n[status]\nlisten = "127.0.0.1:${port}"\n`,
  );
  program = spawn(process.env.WAYLEAVE, ["run", "console", "--config", join(folder, "console.toml")], { stdio: "ignore" });
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
  page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  at = `http://127.0.0.1:${port}`;
  for (let tries = 0; ; tries += 1) {
    try {
      await page.goto(at);
      break;
    } catch (error) {
      if (tries === 100) throw error;
      await new Promise((later) => setTimeout(later, 200));
    }
  }
  await page.getByText("1 of 1 roles ready").waitFor();
});
after(async () => {
  program.kill("SIGKILL");
  await browser.close();
  await new Promise((ended) => {
    role.close(ended);
    role.closeAllConnections();
  });
  rmSync(folder, { recursive: true });
});

const open = async (address) => {
  await page.goto(`${at}/#/${address}`);
  await page.reload();
};
const link = (number) => page.getByRole("link", { name: prefixOf(number), exact: true });

test("a quarter of a million routes are read a hundred at a time, forth and back by keyboard", async () => {
  asked.length = 0;
  await open("routes?source=alpha");
  await page.getByText("Rows 1 to 100 of 250000").waitFor();
  assert.equal(await page.locator("tbody tr").count(), 100);
  const next = page.getByRole("button", { name: "Next page" });
  await next.focus();
  await page.keyboard.press("Enter");
  await page.getByText("Rows 101 to 200 of 250000").waitFor();
  await link(100).waitFor();
  assert.equal(await link(99).count(), 0);
  assert.ok(await next.evaluate((element) => element === document.activeElement), "the focus stays");
  // What was the last row shown goes, and another one long before it.
  gone.add(199).add(5);
  await page.keyboard.press("Enter");
  await page.getByText("Rows 201 to 300 of 249998").waitFor();
  await link(200).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 100);
  await page.getByRole("button", { name: "Previous page" }).click();
  await page.getByText("Rows 101 to 200 of 249998").waitFor();
  await link(100).waitFor();
  await page.getByRole("button", { name: "First page" }).click();
  await page.getByText("Rows 1 to 100 of 249998").waitFor();
  await link(0).waitFor();
  gone.clear();
  assert.ok(asked.length >= 5 && asked.every(({ most }) => most === "100"), JSON.stringify(asked));
});

test("the address of a page can be kept, and the last page is the end", async () => {
  await open(`routes?source=alpha&after=${encodeURIComponent(`${prefixOf(ROUTES - 51)},1`)}&row=249951`);
  await page.getByText("Rows 249951 to 250000 of 250000").waitFor();
  assert.equal(await page.locator("tbody tr").count(), 50);
  const next = page.getByRole("button", { name: "Next page" });
  assert.equal(await next.getAttribute("aria-disabled"), "true");
  await next.focus();
  await page.keyboard.press("Enter");
  await link(ROUTES - 1).waitFor();
  await open(`routes?source=alpha&after=${encodeURIComponent(`${prefixOf(ROUTES)},1`)}`);
  await page.getByText("No rows behind this place").waitFor();
  await page.getByRole("button", { name: "First page" }).click();
  await page.getByText("Rows 1 to 100 of 250000").waitFor();
  assert.doesNotMatch(page.url(), /after=/);
});

test("a filter is the proxy's, and says of how many prefixes", async () => {
  asked.length = 0;
  await open("routes?source=alpha&announcer=bravo");
  await page.getByText("Rows 1 to 100 that match; the router is to have routes to 250000 prefixes").waitFor();
  assert.equal(asked.at(-1).announcer, "bravo");
});

test("headings and columns have hints, which the keyboard reaches and Escape ends", async () => {
  await open("routes?source=alpha");
  await link(0).waitFor();
  const heads = page.locator("thead button");
  const bare = await heads.evaluateAll((all) => all.filter((one) => one.title === "").map((one) => one.textContent));
  assert.deepEqual(bare, []);
  const hint = page.getByRole("tooltip");
  const word = page.locator("h1 abbr");
  await word.focus();
  await hint.waitFor();
  assert.equal(await hint.innerText(), await word.getAttribute("title"));
  await page.keyboard.press("Escape");
  await hint.waitFor({ state: "hidden" });
  for (const screen of ["overview", "map", "events"]) {
    await open(screen);
    await page.getByText("1 of 1 roles ready").waitFor();
    await page.locator("h1 abbr[title]").waitFor();
    const without = await page.locator("thead button").evaluateAll((all) => all.filter((one) => one.title === "").map((one) => one.textContent));
    assert.deepEqual(without, [], screen);
  }
});

test("a hint at the edge of a small window stays inside it, and moves nothing", async () => {
  await page.setViewportSize({ width: 400, height: 700 });
  await open("routes?source=alpha");
  await link(0).waitFor();
  const top = () => page.locator("table").evaluate((element) => element.getBoundingClientRect().top + window.scrollY);
  const before = await top();
  await page.locator("h1 abbr").focus();
  const box = await page.getByRole("tooltip").boundingBox();
  assert.ok(box.x >= 0 && box.x + box.width <= 400, JSON.stringify(box));
  assert.equal(await top(), before);
  await page.setViewportSize({ width: 1280, height: 900 });
});
