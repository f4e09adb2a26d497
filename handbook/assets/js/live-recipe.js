/**
 * The recipe of a running engine in the page's address: `?desk=...`, a text that only the notebook reads. It goes
 * into the notebook's address, and back when the notebook says that it changed.
 */

const NAME = "desk";
export const LONGEST = 4000; // characters: an address stays one that mail and chats carry

let written = { page: "", stem: "" };

/** The recipe for the notebook of `stem`, or null. What one notebook of the page wrote is no recipe for another. */
export function recipeFor(stem) {
  if (written.page === location.pathname && written.stem !== stem) return null;
  const recipe = new URL(location.href).searchParams.get(NAME);
  return recipe && recipe.length <= LONGEST ? recipe : null;
}

/** Writes what the notebook of `stem` says into the address. False where it is no text, or too long for one. */
export function keepRecipe(stem, recipe) {
  if (typeof recipe !== "string" || recipe.length > LONGEST) return false;
  const url = new URL(location.href);
  if (recipe) url.searchParams.set(NAME, recipe);
  else url.searchParams.delete(NAME);
  written = { page: location.pathname, stem };
  if (url.href !== location.href) history.replaceState(history.state, "", url);
  return true;
}
