// Each screen in Chromium, over the roles of a laboratory's exchange (`scripts/console test`). Pictures are kept in $PICTURES.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

// With its token, once; then as a cookie.
const at = new URL(process.env.CONSOLE).origin;
const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const inLab = (place, ...command) => execFileSync(process.env.LAB, ["exec", "--dir", process.env.LAB_DIR, place, ...command], { encoding: "utf8" });

let browser;
let page;
const said = [];

before(async () => {
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
  page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  page.on("console", (message) => {
    if (message.type() === "error") said.push(message.text());
  });
  page.on("pageerror", (error) => said.push(error.message));
  // The console may still be starting.
  for (let tries = 0; ; tries += 1) {
    try {
      await page.goto(process.env.CONSOLE);
      break;
    } catch (error) {
      if (tries === 50) throw error;
      await new Promise((later) => setTimeout(later, 200));
    }
  }
});
after(() => browser.close());

const open = async (address) => {
  await page.goto(`${at}/#/${address}`);
  await page.reload();
};

/** No fault of accessibility, nothing that the policy refused, nothing wider than the page; a picture of it. */
const sound = async (name) => {
  await page.evaluate(axe);
  for (const [width, scheme] of [
    [1280, "light"],
    [1280, "dark"],
    [400, "light"],
  ]) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme: scheme });
    const { violations } = await page.evaluate(() => window.axe.run());
    assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)}`), [], `${name} ${width} ${scheme}`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${name} is ${wide} pixels too wide at ${width}`);
    await page.screenshot({ path: `${process.env.PICTURES}/${name}-${width}-${scheme}.png` });
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.emulateMedia({ colorScheme: "light" });
  assert.deepEqual(said.splice(0), [], name);
};

test("the overview has every role, and what is wrong with each", async () => {
  await open("overview");
  await page.getByText("6 of 6 roles ready").waitFor();
  for (const name of ["party1", "party2", "alpha", "bravo", "charlie", "delta"]) {
    await page.getByRole("heading", { name: `${name} ready` }).waitFor();
  }
  await page.getByText("No role has a problem.").waitFor();
  await sound("overview");
});

test("why a route was chosen, and to whom the own one goes", async () => {
  await open("why?source=alpha&what=198.51.100.0/24");
  await page.getByRole("heading", { name: "announced by bravo (AS64498)" }).waitFor();
  await page.getByText("installed", { exact: true }).waitFor();
  await sound("why");
  await page.getByLabel("Prefix or name").fill("203.0.113.0/26");
  await page.keyboard.press("Enter");
  await page.getByText("charlie (AS64499) may not: rule 1 hides it").waitFor();
  assert.match(page.url(), /what=203\.0\.113\.0%2F26/);
  await sound("why-own");
  await open("why?source=alpha&what=nonsense");
  await page.getByRole("alert").waitFor();
  said.length = 0; // the browser tells of the refused request
});

test("routes are filtered by the proxy and by the page, and lead to why", async () => {
  await open("routes?source=delta");
  await page.getByRole("link", { name: "198.51.100.0/24" }).waitFor();
  const rows = () => page.locator("tbody tr").count();
  const all = await rows();
  await page.getByLabel("Filter").fill("bravo");
  assert.ok((await rows()) < all);
  await page.getByLabel("Filter").fill("");
  await page.getByRole("button", { name: "prefix" }).click();
  assert.equal(await page.locator("th[aria-sort=ascending]").innerText(), "prefix");
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: "CSV" }).click();
  const file = readFileSync(await (await saved).path(), "utf8");
  assert.match(file, /^prefix,announcer,AS path/);
  await sound("routes");
  await page.getByRole("link", { name: "198.51.100.0/24" }).click();
  await page.getByRole("heading", { name: "Why" }).waitFor();
});

test("the map has the links of the table", async () => {
  await open("map");
  await page.getByRole("cell", { name: "party 2" }).first().waitFor();
  await page.locator(".map canvas").first().waitFor();
  await sound("map");
});

test("two sides of a route: shares that look random, and what its announcer knows", async () => {
  await open("sides?prefix=203.0.113.0%2F26");
  await page.getByRole("heading", { name: "Party 1 holds" }).waitFor();
  await page.getByRole("heading", { name: "Party 2 holds" }).waitFor();
  await page.getByText("charlie may not: rule 1 hides it").waitFor();
  assert.equal(await page.locator("svg.bits").count(), 8);
  await sound("sides");
});

test("a role that has gone is named", async () => {
  await open("overview");
  const pid = JSON.parse(execFileSync(process.env.LAB, ["status", "--dir", process.env.LAB_DIR, "--json"], { encoding: "utf8" })).processes.find((one) => one.node === "delta").pid;
  inLab("delta", "kill", "-9", String(pid));
  await page.getByText("5 of 6 roles ready").waitFor();
  await page.getByRole("heading", { name: "Problems (" }).waitFor();
  await page.locator(".problems").getByRole("link", { name: "delta" }).first().waitFor();
  await sound("problems");
});

test("a role's pages, and the screens that no role of this exchange has", async () => {
  await open("source?name=alpha");
  await page.getByText("exports", { exact: true }).click();
  await page.getByRole("cell", { name: "203.0.113.0/26" }).first().waitFor();
  await sound("source");
  for (const [screen, words] of [
    ["overlay", "no gateway among"],
    ["capabilities", "no key server, router or stamper among"],
    ["nowhere", "There is no such screen"],
  ]) {
    await open(screen);
    await page.getByText(words).waitFor();
    await sound(screen);
  }
});

test("experiments stand in the laboratory's console, each with its command", async () => {
  await open("experiments");
  await page.getByRole("link", { name: "Experiments" }).waitFor();
  await page.getByRole("button", { name: "Start sixpack/table-1" }).waitFor();
  await page.getByText("wayleave-lab bench --paper sixpack/table-1 --short").waitFor();
  await sound("experiments");
});

test("attacks stand in the laboratory's console, each with its command", async () => {
  await open("attacks");
  await page.getByRole("button", { name: "pause alpha" }).waitFor();
  await page.getByText(/^wayleave-lab exec --dir .* alpha kill -STOP PID$/).waitFor();
  await sound("attacks");
});

test("the first load is small", async () => {
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  let octets = 0;
  session.on("Network.loadingFinished", ({ encodedDataLength }) => (octets += encodedDataLength));
  await session.send("Network.clearBrowserCache");
  await open("overview");
  await page.getByText("roles ready").waitFor();
  assert.ok(octets > 0 && octets < 300_000, `${octets} octets`);
});
