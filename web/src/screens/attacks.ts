// What can be done to the processes of a laboratory, each with the command that does the same.

import { NoAnswer } from "../api";
import { command, h, put, replace } from "../dom";
import { laboratory, make, type Attack } from "../laboratory";
import type { Screen } from "../main";
import { problem, sourceLink } from "../parts";

const wordsOf = (error: unknown): HTMLElement => problem(error instanceof NoAnswer ? error.message : String(error));

export const attacks: Screen = (into) => {
  const said = h("div", { role: "status" });
  const all = h("div", {}, h("p", { class: "none" }, "Loading"));
  const note = "On processes of this laboratory alone. PID is the number that wayleave-lab status shows. What roles say of an attack, Overview and Events show.";
  into.append(h("h1", {}, "Attacks"), h("p", { class: "none" }, note), said, all);
  const buttons: HTMLButtonElement[] = [];

  const give = async (one: Attack): Promise<void> => {
    for (const button of buttons) button.disabled = true;
    replace(said, h("p", { class: "none" }, `${one.attack} ${one.place}`));
    try {
      await make(one);
      replace(said, h("p", {}, `${one.attack} ${one.place}: done`));
    } catch (error) {
      replace(said, wordsOf(error));
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  };

  const load = async (): Promise<void> => {
    try {
      const of = await laboratory();
      replace(all, list(of.attacks, buttons, (one) => void give(one)));
    } catch (error) {
      replace(all, wordsOf(error));
    }
  };

  void load();
  return () => {};
};

function list(all: readonly Attack[], buttons: HTMLButtonElement[], chosen: (one: Attack) => void): HTMLElement {
  const heads = ["attack", "process", "what it does", "command"].map((head) => h("th", { scope: "col" }, head));
  const body = h("tbody");
  for (const one of all) {
    const button = h("button", { type: "button", "aria-label": `${one.attack} ${one.place}`, click: () => chosen(one) }, one.attack);
    buttons.push(button);
    put(body, h("tr", {}, h("td", {}, button), h("td", {}, sourceLink(one.place)), h("td", {}, one.does), h("td", {}, command(one.command))));
  }
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Attacks" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body));
}
