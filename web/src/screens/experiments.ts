// The papers' tables and figures, measured here: what was published beside ours, in a laboratory alone.

import { NoAnswer } from "../api";
import { command, h, put, redraw, replace } from "../dom";
import { laboratory, start, stop, type Experiment, type Run } from "../laboratory";
import type { Screen } from "../main";
import { problem } from "../parts";

const INTERVAL = 1000;

const wordsOf = (error: unknown): HTMLElement => problem(error instanceof NoAnswer ? error.message : String(error));

export const experiments: Screen = (into) => {
  const sameWork = h("p", { class: "none" }, "Loading");
  const [absent, refused, all] = [h("div"), h("div"), h("section", { "aria-label": "All experiments" })];
  const last = new Last(() => void give(stop));
  const starts: HTMLButtonElement[] = [];
  into.append(h("h1", {}, "Experiments"), sameWork, absent, refused, last.element, all);
  let [isOver, isAsking] = [false, false];

  const load = async (): Promise<void> => {
    if (isAsking) return;
    isAsking = true;
    try {
      const of = await laboratory();
      if (isOver) return;
      replace(absent);
      redraw(sameWork, of.sameWork);
      last.draw(of.run);
      // Drawn once: a focus stays, and so does what a button has said.
      if (starts.length === 0) put(all, list(of.experiments, starts, (one) => void give(() => start(one))));
      for (const button of starts) button.disabled = of.run !== null && of.run.ended === null;
    } catch (error) {
      if (!isOver) redraw(absent, wordsOf(error));
    } finally {
      isAsking = false;
    }
  };

  /** Gives an order; what is refused is said until the next one. */
  const give = async (order: () => Promise<unknown>): Promise<void> => {
    try {
      await order();
      if (!isOver) replace(refused);
    } catch (error) {
      if (!isOver) replace(refused, wordsOf(error));
    }
    await load();
  };

  void load();
  const timer = setInterval(() => void load(), INTERVAL);
  return () => {
    isOver = true;
    clearInterval(timer);
  };
};

/** The experiment that runs or has run last. */
class Last {
  readonly element = h("section", { "aria-label": "Last experiment", hidden: true });
  readonly #title = h("h2");
  readonly #standing = h("span");
  readonly #stop: HTMLButtonElement;
  readonly #result = h("pre", { tabindex: "0", "aria-label": "Result" });
  readonly #progress = h("pre", { tabindex: "0", "aria-label": "Progress" });

  constructor(stopped: () => void) {
    const note = "It prints what it has measured so far; pressed again, it ends at once.";
    this.#stop = h("button", { type: "button", title: note, click: stopped }, "Stop");
    put(this.element, this.#title, h("p", {}, this.#stop, " ", this.#standing), this.#result, this.#progress);
  }

  draw(run: Run | null): void {
    this.element.hidden = run === null;
    if (run === null) return;
    redraw(this.#title, run.id);
    redraw(this.#standing, run.ended === null ? `running, ${run.seconds} s` : `ended after ${run.seconds} s: ${run.ended}`);
    redraw(this.#result, run.result);
    redraw(this.#progress, run.progress.join("\n"));
    this.#stop.hidden = run.ended !== null;
    this.#result.hidden = run.result === "";
    this.#progress.hidden = run.progress.length === 0;
  }
}

function list(experiments: readonly Experiment[], starts: HTMLButtonElement[], chosen: (one: Experiment) => void): HTMLElement {
  const heads = ["experiment", "shows", "takes about", "command"].map((head) => h("th", { scope: "col" }, head));
  const rows = experiments.map((one) => {
    const button = h("button", { type: "button", "aria-label": `Start ${one.id}`, click: () => chosen(one) }, "Start");
    starts.push(button);
    return h("tr", {}, h("td", {}, button, " ", one.id), h("td", {}, one.shows), h("td", {}, one.takes), h("td", {}, command(one.command)));
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Experiments" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)));
}
