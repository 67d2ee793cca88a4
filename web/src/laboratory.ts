// What a laboratory's console has beside the product's: experiments and attacks, and the orders for them. Nothing else sends anything but GET.

import { answerOf, fieldsOf, rowsOf, textOf, textsOf, type Fields } from "./api";

export interface Experiment {
  id: string;
  shows: string;
  takes: string;
  command: string;
}

export interface Run {
  id: string;
  seconds: number;
  /** How it ended; `null` while it runs. */
  ended: string | null;
  progress: string[];
  result: string;
}

export interface Attack {
  attack: string;
  place: string;
  does: string;
  command: string;
}

export interface Laboratory {
  experiments: Experiment[];
  attacks: Attack[];
  sameWork: string;
  run: Run | null;
}

const PLACE = "/api/v1/laboratory";

const experimentOf = (of: Fields): Experiment => ({ id: textOf(of.id), shows: textOf(of.shows), takes: textOf(of.takes), command: textOf(of.command) });

const attackOf = (of: Fields): Attack => ({ attack: textOf(of.attack), place: textOf(of.place), does: textOf(of.does), command: textOf(of.command) });

function runOf(value: unknown): Run | null {
  const of = fieldsOf(value);
  if (of === null) return null;
  return {
    id: textOf(of.id),
    seconds: typeof of.seconds === "number" ? of.seconds : 0,
    ended: typeof of.ended === "string" ? of.ended : null,
    progress: textsOf(of.progress),
    result: textOf(of.result),
  };
}

/** The document that only a laboratory serves. */
export async function laboratory(): Promise<Laboratory> {
  const of = await answerOf(fetch(PLACE, { headers: { accept: "application/json" } }));
  return {
    experiments: rowsOf(of.experiments).map(experimentOf),
    attacks: rowsOf(of.attacks).map(attackOf),
    sameWork: textOf(of.same_work),
    run: runOf(of.run),
  };
}

/** Another mode than fetch's own would hide the Origin, without which no order is taken. */
const order = (what: string): Promise<Fields> => answerOf(fetch(`${PLACE}/${what}`, { method: "POST" }));

export const start = (experiment: Experiment): Promise<Fields> => order(`start/${experiment.id}`);
export const stop = (): Promise<Fields> => order("stop");
export const make = ({ attack, place }: Attack): Promise<Fields> => order(`attack/${attack}/${place}`);
