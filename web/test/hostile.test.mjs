// A role that says hostile things, that dies and returns, and a console that is started again, as a browser sees them.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const HOSTILE = `"><img src=x onerror="window.broken=1"><script>window.broken=2</script>{{7*7}}'; =cmd|' /C calc'!A0`;
const PAGES = {
  overview: { role: "member", run: "a", title: HOSTILE, ready: true, problems: [HOSTILE], columns: [HOSTILE, "state"], rows: [{ well: true, cells: [HOSTILE, "up"] }, { well: false, cells: [] }], counts: [HOSTILE] },
  status: { exchange: HOSTILE },
  events: { run: "a", events: [{ time: "2026-01-01T00:00:00Z", unix: 1767225600, number: 1, what: { event: HOSTILE, who: HOSTILE } }, "x", { time: 7 }, null] },
  routes: { routes: [{ prefix: HOSTILE, announcer: { name: HOSTILE }, as_path: [HOSTILE], state: HOSTILE, communities: [HOSTILE] }], more: false },
  exports: { exports: [{ receivers: [{ name: HOSTILE, may_have: true, why: HOSTILE }], as_path: [1], outcome: HOSTILE }] },
  why: { summary: HOSTILE, own: [{ as_path: [1] }], routes: [{ announcer: { name: HOSTILE, asn: HOSTILE }, as_path: [HOSTILE], outcome: HOSTILE, rule: HOSTILE, cure: HOSTILE, hops: [{ asn: HOSTILE, words: HOSTILE }] }] },
  peers: { peers: [{ peer: HOSTILE, [HOSTILE]: HOSTILE }] },
};

const folder = mkdtempSync(join(tmpdir(), "wayleave-console-"));
let role;
let rolePort;
let consolePort;
let program;
let browser;
let page;

const serveRole = (port) =>
  new Promise((ready) => {
    role = createServer((request, answer) => {
      const name = new URL(request.url, "http://role").pathname.replace("/api/v1/", "");
      answer.writeHead(name in PAGES ? 200 : 404, { "content-type": "application/json" });
      answer.end(JSON.stringify(PAGES[name] ?? { error: "this role has no such page" }));
    }).listen(port, "127.0.0.1", () => ready(role.address().port));
  });
const startConsole = () => {
  program = spawn(process.env.WAYLEAVE, ["run", "console", "--config", join(folder, "console.toml")], { stdio: "ignore" });
};
const freePort = () =>
  new Promise((ready) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => ready(port));
    });
  });
const endRole = () =>
  new Promise((ended) => {
    role.close(ended);
    role.closeAllConnections();
  });

before(async () => {
  rolePort = await serveRole(0);
  consolePort = await freePort();
  writeFileSync(
    join(folder, "console.toml"),
    `[console]\n[[source]]\nname = "alpha"\nat = "http://127.0.0.1:${rolePort}"\n[status]\nlisten = "127.0.0.1:${consolePort}"\n`,
  );
  startConsole();
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
  page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  for (let tries = 0; ; tries += 1) {
    try {
      await page.goto(`http://127.0.0.1:${consolePort}`);
      break;
    } catch (error) {
      if (tries === 100) throw error;
      await new Promise((later) => setTimeout(later, 200));
    }
  }
});
after(async () => {
  program.kill("SIGKILL");
  await browser.close();
  await endRole();
  rmSync(folder, { recursive: true });
});

test("hostile texts are text on every screen", async () => {
  await page.getByText("1 of 1 roles ready").waitFor();
  for (const address of ["overview", "events", "routes?source=alpha", "why?source=alpha&what=10.0.0.0/8", "map", "source?name=alpha", "capabilities", "overlay"]) {
    await page.goto(`http://127.0.0.1:${consolePort}/#/${address}`);
    await page.reload();
    if (!["capabilities", "overlay"].includes(address)) await page.locator(":text('onerror'):visible").first().waitFor();
    assert.equal(await page.evaluate(() => window.broken), undefined, address);
    assert.equal(await page.locator("main img, main script").count(), 0, address);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${address} is ${wide} pixels too wide`);
  }
});

test("a prefix that a shell would take for more than a word is in no command", async () => {
  await page.goto(`http://127.0.0.1:${consolePort}/#/why?source=alpha&what=${encodeURIComponent("10.0.0.0/8; reboot")}`);
  await page.reload();
  await page.getByRole("heading", { name: "10.0.0.0/8; reboot" }).waitFor();
  assert.equal(await page.locator(".command").count(), 0);
});

test("a filter that somebody types into stays while the table changes", async () => {
  await page.goto(`http://127.0.0.1:${consolePort}/#/source?name=alpha`);
  await page.reload();
  const filter = page.getByLabel("Filter Peers of alpha");
  await filter.pressSequentially("onerror");
  PAGES.overview = { ...PAGES.overview, rows: [...PAGES.overview.rows, { well: true, cells: ["another onerror", "up"] }] };
  await page.getByText("another onerror").waitFor();
  assert.equal(await filter.inputValue(), "onerror");
  assert.ok(await filter.evaluate((element) => element === document.activeElement));
});

test("a role that dies is named, and returns by itself", async () => {
  await page.goto(`http://127.0.0.1:${consolePort}/#/overview`);
  await endRole();
  await page.getByText("0 of 1 roles ready").waitFor();
  await page.getByText("no answer from").first().waitFor();
  await serveRole(rolePort);
  await page.getByText("1 of 1 roles ready").waitFor();
});

test("an event is shown while one looks, once, also after the console was started again", async () => {
  await page.goto(`http://127.0.0.1:${consolePort}/#/events`);
  await page.reload();
  await page.getByText("1 of 1 roles ready").waitFor();
  const shown = () => page.getByRole("cell", { name: "just-now", exact: true }).count();
  PAGES.events.events = [...PAGES.events.events, { time: "2026-01-01T00:00:01Z", unix: 1767225601, number: 2, what: { event: "just-now" } }];
  await page.getByRole("cell", { name: "just-now", exact: true }).waitFor();
  program.kill("SIGKILL");
  await page.getByText("the console does not answer").waitFor();
  startConsole();
  await page.getByText("1 of 1 roles ready").waitFor();
  await page.getByRole("cell", { name: "just-now", exact: true }).waitFor();
  assert.equal(await shown(), 1);
});
