/** The table of a comparison and the sentence that says which side won. */

import { escaped } from "./format.js";

export class Comparison {
  #verdict;
  #host;
  #told = "";

  constructor(verdict, host) {
    this.#verdict = verdict;
    this.#host = host;
  }

  draw(compared) {
    const told = JSON.stringify(compared ?? null);
    if (told === this.#told) return;
    this.#told = told;
    this.#verdict.hidden = this.#host.hidden = !compared;
    if (!compared) return;
    this.#verdict.textContent = compared.sentence;
    const cell = (one, won) => `<td${won ? ' class="won"' : ""}>${escaped(one.median)}${one.spread ? `<small>${escaped(one.spread)}</small>` : ""}</td>`;
    const rows = compared.rows.map(
      (row) => `<tr><th scope="row">${escaped(row.label)}</th>${cell(row.a, row.winner === "A" && row.clear)}${cell(row.b, row.winner === "B" && row.clear)}
        <td>${better(row)}</td></tr>`,
    );
    const round = compared.of > 1 ? `, ${compared.rounds < compared.of ? `round ${compared.rounds + 1} of ${compared.of}` : `${compared.of} rounds`}` : "";
    this.#host.innerHTML = `<div class="wide"><table><caption>A beside B: medians with their spread${round}</caption><thead><tr><th scope="col">of all requests</th>
      <th scope="col">A</th><th scope="col">B</th><th scope="col">better</th></tr></thead><tbody>${rows.join("")}</tbody></table></div>`;
  }
}

/** Which side is better by a metric, and whether that is known. */
function better({ winner, clear, factor }) {
  if (!winner) return "the same";
  if (clear === false) return "within the spread";
  const times = factor === "0" ? "" : `, ${factor} ×`;
  return `${winner}${times}${clear === null ? " so far" : ""}`;
}
