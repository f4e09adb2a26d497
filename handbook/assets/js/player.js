/**
 * Lets a slider run through its stops, one at a time, until its end, until the reader moves anything,
 * or until the figure is out of view. It moves the slider as a hand would.
 */

export class Player {
  #button;
  #slider;
  #figure;
  #pace; // milliseconds of a step
  #timer = 0;
  #observer = new IntersectionObserver((entries) => {
    if (!entries.at(-1).isIntersecting) this.stop();
  });

  /** `button` stands beside its slider in `figure`; nothing listens once `signal` is aborted. */
  constructor(button, figure, signal) {
    this.#button = button;
    this.#slider = button.parentElement.querySelector("input");
    this.#figure = figure;
    this.#pace = Number(button.dataset.play);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => (this.#timer ? this.stop() : this.#start()), { signal });
    figure.addEventListener("input", (event) => { if (event.isTrusted) this.stop(); }, { signal });
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
    this.#button.setAttribute("aria-pressed", "false");
    this.#observer.disconnect();
  }

  #start() {
    if (this.#slider.value === this.#slider.max) this.#move(this.#slider.min);
    this.#timer = setInterval(() => this.#step(), this.#pace);
    this.#button.setAttribute("aria-pressed", "true");
    this.#observer.observe(this.#figure);
    this.#step();
  }

  #step() {
    this.#move(this.#slider.valueAsNumber + 1);
    if (this.#slider.value === this.#slider.max) this.stop();
  }

  #move(position) {
    this.#slider.value = position;
    this.#slider.dispatchEvent(new Event("input", { bubbles: true }));
  }
}
