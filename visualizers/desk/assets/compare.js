/** The table of a comparison and the sentence that says which side won. */

import { escaped } from "./format.js";

export class Comparison {
  #host;
  #told = "";

  constructor(host) {
    this.#host = host;
  }

  draw(compared) {
    const told = JSON.stringify(compared ?? null);
    if (told === this.#told) return;
    this.#told = told;
    this.#host.hidden = !compared;
    if (!compared) return;
    const cell = (one, won) => `<td${won ? ' class="won"' : ""}>${escaped(one.median)}${one.spread ? `<small>${escaped(one.spread)}</small>` : ""}</td>`;
    const rows = compared.rows.map(
      (row) => `<tr><th scope="row">${escaped(row.label)}</th>${cell(row.a, row.winner === "A" && row.clear)}${cell(row.b, row.winner === "B" && row.clear)}
        <td>${row.winner ? (row.clear === null ? "more rounds needed" : row.clear ? `${row.winner}, ${row.factor === "0" ? "" : `${row.factor} ×`}` : "within the spread") : "the same"}</td></tr>`,
    );
    this.#host.innerHTML = `<p class="verdict" role="status">${escaped(compared.sentence)}</p>
      <details ${compared.rounds ? "open" : ""}><summary>Medians with their spread${compared.of > 1 ? `, round ${Math.min(compared.rounds + 1, compared.of)} of ${compared.of}` : ""}</summary>
      <div class="wide"><table><thead><tr><th scope="col">of all requests</th><th scope="col">A</th><th scope="col">B</th><th scope="col">better</th></tr></thead><tbody>${rows.join("")}</tbody></table></div></details>`;
  }
}
