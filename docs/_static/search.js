/* Find pages that contain any word of a query, and list pages with these words in a title first.

   Without this script, Sphinx finds only pages that contain all words of the query. */
if (typeof Search !== "undefined") {
  Scorer.title = 100;
  Scorer.partialTitle = 30;
  const searchOneWord = Search.performTermsSearch;
  Search.performTermsSearch = (words, excludedWords) => {
    const pages = new Map();
    for (const word of words) {
      for (const result of searchOneWord(new Set([word]), excludedWords)) {
        const [name, , , , score] = result;
        if (pages.has(name)) pages.get(name)[4] += score;
        else pages.set(name, result);
      }
    }
    return [...pages.values()];
  };
}
