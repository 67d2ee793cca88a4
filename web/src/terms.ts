// What a term means, where a reader may not know it. The words are those of the project's dictionary.

import { h } from "./dom";

const TERMS: Record<string, string> = {
  verdict: "what attestation found of a route's AS path: valid, gap, unattested, expired or invalid",
  loss: "packets that did not arrive, of all that were sent to measure",
  "round trip": "from sending a packet to its answer, over the whole path and back",
  profile: "how packets are protected on the path",
  "packet size": "octets that a packet may have inside the path's headers",
  "consents until": "when the first consent of a node on the path ends",
  policy: "the gateway's rule by which it chose the path",
  pinned: "the path that an operator chose for this name",
  avoided: "nodes that no path may cross",
  unresolved: "names of the policy that nobody has now",
  batch: "the number of the exchange's last round of changes",
  "member set": "the list of members that both operators signed",
};

/** A name with its hint, if it has one. */
export function hint(name: string): HTMLElement {
  const words = TERMS[name];
  return words === undefined ? h("span", {}, name) : h("abbr", { title: words, tabindex: "0" }, name);
}
