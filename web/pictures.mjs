// Pictures for the documents (`scripts/console pictures`): the screens that are named, of a laboratory that is up.
//
// node pictures.mjs FOLDER NAME=SCREEN[|TEXT]...   TEXT is what is waited for

import { chromium } from "playwright-core";

const [folder, ...wanted] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 960, height: 600 } });
await page.goto(process.env.CONSOLE);
for (const one of wanted) {
  const [, name, screen, text] = /^([^=]+)=([^|]*)\|?(.*)$/.exec(one);
  await page.goto(`${new URL(process.env.CONSOLE).origin}/#/${screen}`);
  await page.reload();
  if (text !== "") await page.getByText(text).first().waitFor();
  // A picture of a page that still moves would be another one each time.
  await page.waitForTimeout(2000);
  const height = await page.evaluate(() => document.querySelector("main").getBoundingClientRect().bottom);
  await page.screenshot({ path: `${folder}/${name}.png`, clip: { x: 0, y: 0, width: 960, height: Math.min(900, Math.ceil(height) + 16) }, fullPage: true });
}
await browser.close();
